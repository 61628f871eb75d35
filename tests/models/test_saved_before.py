"""A folder that an older version saved opens, and its model says what it said."""

from pathlib import Path

import pytest
import torch
import yaml

import polyattn

FOLDERS = sorted(Path(__file__).parent.glob("saved_*"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_of_an_older_version_opens(folder: Path) -> None:
    model = polyattn.load(folder).eval()
    expected = torch.tensor(yaml.safe_load((folder / "logits.yaml").read_text()))
    logits = model(torch.tensor([[0, 1, 2, 3, 4, 3]]))
    torch.testing.assert_close(logits[0], expected, rtol=0, atol=1e-5)


def test_there_is_one() -> None:
    assert FOLDERS
