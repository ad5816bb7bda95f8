"""Files appear whole or not at all, and nothing already there is harmed."""

import os

import pytest

from tfopt import UserError
from tfopt.files import alone_in, prepare_folder, target_of, write_atomically


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    target = tmp_path / "model.keras"
    target.write_text("old")

    def failing(path):
        with open(path, "w") as file:
            file.write("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="No space left"):
        write_atomically(target, failing)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]


def test_written_files_have_the_usual_permissions(tmp_path):
    ordinary = tmp_path / "a.txt"
    ordinary.write_text("a")
    written = write_atomically(tmp_path / "b.txt", "b")
    assert written.stat().st_mode == ordinary.stat().st_mode


def test_what_is_written_to_a_link_is_written_to_what_it_names(tmp_path):
    (tmp_path / "there").mkdir()
    real, link = tmp_path / "there" / "m.keras", tmp_path / "m.keras"
    link.symlink_to(real)
    for content in ("first", "second"):
        assert write_atomically(link, content) == link
        assert link.is_symlink()
        assert real.read_text() == content
    assert [path.name for path in real.parent.iterdir()] == ["m.keras"]


def test_a_folder_that_cannot_be_written_is_refused_first(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(UserError, match="cannot be written"):
        prepare_folder(blocked / "inside")
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(UserError, match="cannot be written"):
            prepare_folder(tmp_path / "locked")


def test_a_file_in_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        target_of(tmp_path / "no" / "file")
    assert target_of(str(tmp_path / "file")) == tmp_path / "file"


def test_a_folder_in_which_nothing_was_written_is_not_left(tmp_path):
    new, old = tmp_path / "new" / "er", tmp_path / "old"
    old.mkdir()
    for folder in (new, old):
        with alone_in(folder):
            assert folder.is_dir()
    assert [*tmp_path.rglob("*")] == [old]
    with alone_in(new):
        (new / "report").touch()
    assert (new / "report").exists()
