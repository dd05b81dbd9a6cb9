"""Changed values for generated tests of bad files."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def changed(draw: st.DrawFn, value: Any) -> Any:
    """Return a value in which a random part is replaced or removed."""
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 7)) == 0:
        return draw(JSON)
    copied: Any = value.copy()
    key = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
    if draw(st.integers(0, 9)) == 0:
        del copied[key]
    else:
        copied[key] = changed(draw, value[key])
    return copied
