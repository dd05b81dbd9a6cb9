"""Path resolution in a real file system, with real links."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentobs.agent.execution.path_resolution import resolver
from agentobs.errors import UsageError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with files and links, next to a secret."""
    (tmp_path / "secret").write_text("s")
    (tmp_path / "root-2").mkdir()
    made = tmp_path / "root"
    (made / "src" / "deep").mkdir(parents=True)
    (made / "src" / "a.py").write_text("a")
    links = {
        "in": "src/a.py",
        "out": "../secret",
        "absolute": str(tmp_path / "secret"),
        "up": "..",
        "dir": "src/deep",
        "dangling": "src/new.py",
        "dangling-out": "../new",
        "through": "up/root/src",
        "loop": "loop",
        "ping": "pong",
        "pong": "ping/x",
        "root-link": "/",
        "proc": "/proc/self/root",
    }
    for name, target in links.items():
        (made / name).symlink_to(target)
    return made


INSIDE = {
    "src/a.py": "src/a.py",
    "./src//a.py": "src/a.py",
    ".": ".",
    "": None,
    "src/": "src",
    "src/../src/a.py": "src/a.py",
    "new": "new",
    "new/deeper/x.txt": "new/deeper/x.txt",
    "in": "src/a.py",
    "dir/x": "src/deep/x",
    "dir/../a.py": "src/a.py",
    "dir/../../src": "src",
    "dangling": "src/new.py",
    "through/a.py": "src/a.py",
    "up/root/src/a.py": "src/a.py",
    " ": " ",
    "src/ä 日本.py": "src/ä 日本.py",
    "$HOME": "$HOME",
    "a~": "a~",
    "src/~": "src/~",
    "..x": "..x",
    "C:\\x": "C:\\x",
}
"""Paths inside the root, and their results; None if they are refused."""

OUTSIDE = [
    "..", "../secret", "src/../../secret", "src/../../root-2", "../root-2/x", "/", "/etc/passwd", "out", "out/x",
    "absolute", "up", "up/secret", "up/root-2", "dangling-out", "dir/../../../secret", "new/../../secret", "loop",
    "loop/x", "loop/../src/a.py", "ping", "pong/y", "root-link/etc/passwd", "proc/etc/passwd",
    "~", "~/x", "~root/.ssh", "a\0b",
    "\0", "x" * 5000, "x/" * 3000, "é" * 2100, "src/\ud800", "src/\udcff", "//etc/passwd", "in/../../../secret",
    "src/a.py/x",
]  # fmt: skip


@pytest.mark.parametrize("path", [path for path, told in INSIDE.items() if told is not None])
def test_a_path_in_the_root_is_told_relative_to_it(root: Path, path: str) -> None:
    """Links are followed before `..`, and a path that does not exist yet is where it would be created."""
    assert resolver([root])([path]) == [{"path": INSIDE[path], "inside": True}]


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda text: ascii(text[:30]))
def test_a_path_out_of_the_root_is_outside(root: Path, path: str) -> None:
    """A path that leads out, or cannot be followed, is outside; the answer is JSON of ordinary length."""
    [told] = resolver([root])([path])
    assert told["inside"] is False
    assert len(json.dumps(told, ensure_ascii=False).encode("utf-8")) < 5000
    assert "\0" not in told["path"]


def test_answers_come_in_the_order_of_the_questions(root: Path) -> None:
    """Each path has its answer; a value that is not a path is outside."""
    strange: list[Any] = ["src/a.py", "", "../secret", None, 7, "new"]
    told = resolver([root])(strange)
    assert [each["inside"] for each in told] == [True, False, False, False, False, True]
    assert told[2]["path"] == os.path.realpath(root.parent / "secret")
    assert resolver([root])([]) == []


def test_a_root_may_be_a_link_itself(root: Path, tmp_path: Path) -> None:
    """A root is resolved when the resolver is made; both of its names lead into it."""
    link = tmp_path / "link"
    link.symlink_to(root)
    resolve = resolver([link])
    assert (
        resolve([str(link / "src/a.py"), str(root / "src/a.py"), "src/a.py"])
        == [{"path": "src/a.py", "inside": True}] * 3
    )
    link.unlink()
    link.symlink_to("/")
    assert resolve(["src/a.py"]) == [{"path": "src/a.py", "inside": True}]
    assert resolve([str(link / "etc")])[0]["inside"] is False


def test_what_lies_in_another_root_is_told_absolute(root: Path, tmp_path: Path) -> None:
    """Only the first root has relative names; a root with a similar prefix is another one."""
    other = os.path.realpath(tmp_path / "root-2")
    resolve = resolver([root, tmp_path / "root-2"])
    assert resolve(["../root-2/x", "out", other]) == [
        {"path": f"{other}/x", "inside": True},
        {"path": os.path.realpath(tmp_path / "secret"), "inside": False},
        {"path": other, "inside": True},
    ]


def test_a_link_that_changes_is_followed_anew(root: Path) -> None:
    """Nothing is cached between two questions."""
    resolve = resolver([root])
    assert resolve(["in"])[0]["inside"] is True
    (root / "in").unlink()
    (root / "in").symlink_to("/etc/passwd")
    assert resolve(["in"]) == [{"path": os.path.realpath("/etc/passwd"), "inside": False}]


def test_capitals_are_other_letters(root: Path) -> None:
    """A root in another case is another folder, unless the file system resolves it to the same one."""
    [told] = resolver([root])([str(root).upper() + "/src/a.py"])
    assert told["inside"] is False


def test_a_root_that_is_none_is_told(root: Path) -> None:
    """No root, a missing one, a file and a circular link each raise one error."""
    for roots in ([], [root / "missing"], [root / "src/a.py"], [root, root / "loop"]):
        with pytest.raises(UsageError) as caught:
            resolver(roots)
        assert caught.value.todo


pieces = st.sampled_from(
    [
        "src",
        "a.py",
        "..",
        ".",
        "up",
        "out",
        "dir",
        "loop",
        "in",
        "through",
        "new",
        "root",
        "/",
        "~",
        "\0",
        "root-link",
    ]
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(pieces, max_size=7))
def test_what_is_inside_opens_inside(root: Path, parts: list[str]) -> None:
    """A path of any links and steps that is reported as inside opens, if it can be opened, inside the root."""
    path = "/".join(parts)
    [told] = resolver([root])([path])
    if not told["inside"]:
        return
    real_root = os.path.realpath(root)
    assert not told["path"].startswith(("/", "../"))
    try:
        opened = os.open(f"{root}/{path}", os.O_RDONLY)
    except (OSError, ValueError):
        return
    try:
        there = os.fstat(opened)
        told_there = Path(real_root, told["path"]).stat()
        assert (there.st_dev, there.st_ino) == (told_there.st_dev, told_there.st_ino)
    finally:
        os.close(opened)
