"""Numbers of vectors: their lengths, and which of them were float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.clients.vectors import may_be_float64, normalized, row_lengths
from tests.search import examples

NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.mark.contract
@settings(max_examples=examples(200))
@given(st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=4))
def test_normalized_vectors_have_length_one_whatever_the_size_of_their_numbers(
    rows: list[list[float]],
) -> None:
    given_rows = np.array(rows, np.float32)
    found = normalized(given_rows.copy()).astype(np.float64)
    exact = given_rows.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=1)
    zeros = lengths == 0.0
    assert not found[zeros].any()
    assert np.allclose(found[~zeros], exact[~zeros] / lengths[~zeros, None], atol=1e-6)


def test_the_lengths_of_rows_are_right_where_their_squares_are_not() -> None:
    rows = np.array([[3e25, 4e25], [3e-30, 4e-30], [3.0, 4.0], [0.0, 0.0], [3e38, 0.0]], np.float32)
    assert np.allclose(row_lengths(rows), [5e25, 5e-30, 5.0, 0.0, 3e38], rtol=1e-6)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", ["<f4", "<f8", "float64 of float32"])
def test_float64_that_was_read_as_float32_is_seen_and_no_vector_of_float32_is_taken_for_it(
    seed: int, kind: str
) -> None:
    random = np.random.default_rng(seed)
    numbers = random.normal(size=(3, 64)) * 10.0 ** random.integers(-3, 2)
    if kind == "float64 of float32":
        sent = numbers.astype("<f4").astype("<f8")
    else:
        sent = numbers.astype(kind)
    assert may_be_float64(np.frombuffer(sent.tobytes(), "<f4").reshape(3, -1)) is (sent.itemsize == 8)
