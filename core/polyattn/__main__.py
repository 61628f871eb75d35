"""``python -m polyattn``: the program ``polyattn``, where no script is on the path. No torch."""

from polyattn.cli.main import run

if __name__ == "__main__":
    run()
