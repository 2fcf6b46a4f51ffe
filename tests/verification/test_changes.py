"""How one tensor differs from another, in words."""

import numpy as np
import pytest

from txl_export.verification.bisection import changes, numbers

RNG = np.random.default_rng(0)
MATRIX = RNG.standard_normal((12, 12)).astype(np.float32)
TABLE = RNG.standard_normal((2, 6, 30)).astype(np.float32)
LARGE = RNG.standard_normal((40, 30)).astype(np.float32)


def one_number(array: np.ndarray, value: float) -> np.ndarray:
    changed = array.copy()
    changed[2, 3] = value
    return changed


@pytest.mark.parametrize(
    ("found", "expected", "words"),
    [
        (MATRIX * 2, MATRIX, "is multiplied by 2"),
        (-MATRIX, MATRIX, "is multiplied by -1"),
        (MATRIX.T, MATRIX, "is transposed"),
        (np.zeros_like(MATRIX), MATRIX, "is all zeros"),
        (MATRIX[:, :5], MATRIX, "has shape [12, 5], expected [12, 12]"),
        (MATRIX[[1, 0, *range(2, 12)]], MATRIX, "has 2 rows in another order"),
        (LARGE[:, [*range(28), 29, 28]], LARGE, "has 2 columns in another order"),
        (np.roll(TABLE, 3, -1), TABLE, "is shifted by +3 rows along axis 2"),
        (np.roll(TABLE, -1, -1), TABLE, "is shifted by -1 row along axis 2"),
        (TABLE[..., np.maximum(np.arange(30), 9)], TABLE, "is clamped at distance 20, expected 29"),
        (MATRIX.astype(np.float16).astype(np.float32), MATRIX, "is rounded to float16"),
        ((MATRIX.view(np.uint32) & 0xFFFF0000).view(np.float32), MATRIX, "is rounded to bfloat16"),
        (np.round(LARGE * 40) / 40, LARGE, "steps, as by int8"),
        (one_number(MATRIX, np.nan), MATRIX, "holds 1 infinite or NaN"),
        (one_number(MATRIX, 7.0), MATRIX, "holds 7, expected"),
        (np.array([1, 2]), np.array([1, 3]), "holds 2, expected 3 at [1]; differs in 1 of 2 numbers, by up to 1"),
        (np.float32(2.5), np.float32(1.5), "holds 2.5, expected 1.5"),
    ],
)
def test_a_change_is_told_by_what_it_is(found: np.ndarray, expected: np.ndarray, words: str) -> None:
    assert words in changes.describe(np.asarray(found), np.asarray(expected))


def test_infinities_and_nan_in_the_same_place_are_no_difference() -> None:
    a, inf, nan = np.float32([1, 2, 3]), np.float32(np.inf), np.float32(np.nan)
    assert numbers.distance(np.stack([a, a * inf, a * nan]), np.stack([a, a * inf, a * nan])) == 0
    assert numbers.distance(a * inf, -a * inf) == numbers.distance(a * nan, a) == np.inf
    assert numbers.distance(a, a[:2]) == np.inf
    told = numbers.Range.of(np.float32([1, -2, np.inf, np.nan]))
    assert (told.low, told.high, told.nonfinite) == (-2, 1, 2) and "2 not finite" in str(told)


def test_calls_are_those_of_a_session() -> None:
    from types import SimpleNamespace

    from tests.helpers import tiny_config
    from txl_export.backends.base import Streams
    from txl_export.heads import head_spec
    from txl_export.segments import SegmentRange
    from txl_export.tokens import Tokens
    from txl_export.verification.bisection.calls import calls

    config = tiny_config(same_length=True)
    info = SimpleNamespace(segments=(SegmentRange(1, 1), SegmentRange(4, 4)), config=config)
    streams = SimpleNamespace(batch_size=2, info=info, plan=lambda *asked: Streams.plan(streams, *asked))
    tokens = Tokens(np.arange(28).reshape(2, 14), "ids", True)
    made = calls(tokens, 6, head_spec("target", config, 4), streams, last=2)
    assert [(c.segment, c.start, c.ids.shape[1]) for c in made] == [
        (0, 0, 4), (0, 4, 1), (0, 5, 1), (1, 6, 4), (1, 10, 1), (1, 11, 1), (2, 12, 1),
    ]  # fmt: skip
    assert np.array_equal(made[3].ids[1], [20, 21, 22, 23]) and np.array_equal(made[3].targets[1], [21, 22, 23, 24])
    last = calls(tokens, 6, head_spec("target@last", config, 4), streams, last=0)
    assert [c.targets.tolist() for c in last] == [[[4], [18]], [[5], [19]], [[6], [20]]]
