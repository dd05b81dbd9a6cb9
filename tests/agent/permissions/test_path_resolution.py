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
    """Create a root with files and links; a secret file and another folder are next to the root."""
    (tmp_path / "secret").write_text("s")
    (tmp_path / "root-2").mkdir()
    root_path = tmp_path / "root"
    (root_path / "src" / "deep").mkdir(parents=True)
    (root_path / "src" / "a.py").write_text("a")
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
        (root_path / name).symlink_to(target)
    return root_path


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
"""Paths inside the root, and the resolved paths; None if a path is outside."""

OUTSIDE = [
    "..", "../secret", "src/../../secret", "src/../../root-2", "../root-2/x", "/", "/etc/passwd", "out", "out/x",
    "absolute", "up", "up/secret", "up/root-2", "dangling-out", "dir/../../../secret", "new/../../secret", "loop",
    "loop/x", "loop/../src/a.py", "ping", "pong/y", "root-link/etc/passwd", "proc/etc/passwd",
    "~", "~/x", "~root/.ssh", "a\0b",
    "\0", "x" * 5000, "x/" * 3000, "é" * 2100, "src/\ud800", "src/\udcff", "//etc/passwd", "in/../../../secret",
    "src/a.py/x",
]  # fmt: skip


@pytest.mark.parametrize(
    "path", [path for path, resolved in INSIDE.items() if resolved is not None]
)
def test_a_path_in_the_root_is_relative_to_it(root: Path, path: str) -> None:
    """The resolved path of a path in the root is relative to the root.

    Links are followed before `..` is applied, and a path that does not exist yet is resolved to where it would be
    created.
    """
    assert resolver([root])([path]) == [{"path": INSIDE[path], "inside": True}]


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda text: ascii(text[:30]))
def test_a_path_out_of_the_root_is_outside(root: Path, path: str) -> None:
    """A path that leads out of the root or cannot be followed is outside, and the answer is short, valid JSON."""
    [answer] = resolver([root])([path])
    assert answer["inside"] is False
    assert len(json.dumps(answer, ensure_ascii=False).encode("utf-8")) < 5000
    assert "\0" not in answer["path"]


def test_answers_have_the_order_of_the_paths(root: Path) -> None:
    """Each path gets its own answer, in order; a value that is not a path is outside."""
    strange: list[Any] = ["src/a.py", "", "../secret", None, 7, "new"]
    answer = resolver([root])(strange)
    assert [each["inside"] for each in answer] == [True, False, False, False, False, True]
    assert answer[2]["path"] == os.path.realpath(root.parent / "secret")
    assert resolver([root])([]) == []


def test_a_root_may_be_a_link(root: Path, tmp_path: Path) -> None:
    """If a root is a link, paths under both of its names are inside."""
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


def test_paths_in_further_roots_are_absolute(root: Path, tmp_path: Path) -> None:
    """Only paths in the first root become relative; a folder whose name starts with the name of a root is not inside
    that root.
    """
    other = os.path.realpath(tmp_path / "root-2")
    resolve = resolver([root, tmp_path / "root-2"])
    assert resolve(["../root-2/x", "out", other]) == [
        {"path": f"{other}/x", "inside": True},
        {"path": os.path.realpath(tmp_path / "secret"), "inside": False},
        {"path": other, "inside": True},
    ]


def test_a_changed_link_is_followed_again(root: Path) -> None:
    """If a link changes, the next resolution follows it again, because nothing is cached."""
    resolve = resolver([root])
    assert resolve(["in"])[0]["inside"] is True
    (root / "in").unlink()
    (root / "in").symlink_to("/etc/passwd")
    assert resolve(["in"]) == [{"path": os.path.realpath("/etc/passwd"), "inside": False}]


def test_a_root_in_another_case(root: Path) -> None:
    """A root in upper case is another folder, unless the file system resolves it to the same folder."""
    [answer] = resolver([root])([str(root).upper() + "/src/a.py"])
    assert answer["inside"] is False


def test_an_invalid_root_is_one_error(root: Path) -> None:
    """A missing root, a file, a circular link, and an empty list of roots each raise one error."""
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
def test_a_path_reported_as_inside_opens_inside(root: Path, parts: list[str]) -> None:
    """If a path of arbitrary links and steps is reported as inside, the file that it opens is inside the root."""
    path = "/".join(parts)
    [answer] = resolver([root])([path])
    if not answer["inside"]:
        return
    real_root = os.path.realpath(root)
    assert not answer["path"].startswith(("/", "../"))
    try:
        opened = os.open(f"{root}/{path}", os.O_RDONLY)
    except (OSError, ValueError):
        return
    try:
        real_stat = os.fstat(opened)
        resolved_stat = Path(real_root, answer["path"]).stat()
        assert (real_stat.st_dev, real_stat.st_ino) == (resolved_stat.st_dev, resolved_stat.st_ino)
    finally:
        os.close(opened)
