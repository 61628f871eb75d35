"""Reading a text: any bytes will do, and what will not is said in one line."""

import pytest

from polyattn.errors import ConfigError
from polyattn.measure import text
from polyattn.measure.text import Text, default_text, read_text, split


def test_bytes_are_bytes(tmp_path):
    data = bytes(range(256)) * 4
    (tmp_path / "noise").write_bytes(data)
    read = read_text(tmp_path / "noise", 258)
    assert (read.data, read.size, read.default, read.note) == (data, len(data), False, "")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "expected a file, this is a folder"),
        (lambda path: path.write_bytes(b""), "the file is empty"),
        (lambda path: path.write_bytes(b"a" * 257), "257 bytes are shorter than one context"),
    ],
)
def test_what_cannot_be_learnt_from(tmp_path, make, said):
    path = tmp_path / "book"
    make(path)
    with pytest.raises(ConfigError, match=said) as caught:
        read_text(path, 258)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = tmp_path / "book"
    path.write_bytes(b"a" * 999)

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_text(path, 258)


def test_a_text_of_exactly_the_least_length_is_taken(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(b"a" * 258)
    assert len(read_text(path, 258).data) == 258


def test_a_text_beyond_the_limit_is_cut_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "LIMIT", 300)
    (tmp_path / "long").write_bytes(b"a" * 1000)
    read = read_text(tmp_path / "long", 258)
    assert len(read.data) == 300
    assert "1,000 bytes; the first 300" in read.note


def test_the_end_is_held_out(monkeypatch):
    data = bytes(100) + bytes([1]) * 100
    train, held_out = split(data)
    assert train + held_out == data
    assert len(held_out) == 20
    assert len(split(data, 129)[1]) == 129
    monkeypatch.setattr(text, "JUDGED", 7)
    assert len(split(data)[1]) == 7


def test_the_default_text_is_there_on_every_machine():
    read = default_text()
    assert read.default
    assert len(read.data) > 100_000
    assert read.sha256 == Text("", True, read.data, 0).sha256
