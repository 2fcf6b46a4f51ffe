"""A feed that fails leaves memory and positions as they were: the next one never notices."""

import numpy as np
import onnxruntime as ort
import pytest

from tests.bundles import Exported, one_line, same_arrays
from tests.helpers import random_ids
from txl_export.errors import InputError

B, V = 2, 29
IDS = [[1] * 8] * B


def array(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def readonly():
    out = array(B, 8, V)
    out.flags.writeable = False
    return out


WRONG = {
    "token too large": ({"ids": [[1, V], [1, 1]]}, f"{V}, expected tokens from 0 to {V - 1}"),
    "token negative": ({"ids": [[1, 1], [-1, 1]]}, "-1"),
    "token beyond int64": ({"ids": np.full((B, 1), 2**63, np.uint64)}, str(2**63)),
    "float ids": ({"ids": np.ones((B, 3), np.float32)}, "float32, expected integers"),
    "NaN ids": ({"ids": np.full((B, 3), np.nan)}, "expected integers"),
    "bool ids": ({"ids": np.ones((B, 3), bool)}, "bool, expected integers"),
    "text": ({"ids": "ab"}, "expected integers"),
    "None": ({"ids": None}, "expected integers"),
    "rank 1": ({"ids": [1, 2, 3]}, "[2, n]"),
    "rank 3": ({"ids": [[[1]], [[2]]]}, "[2, n]"),
    "another batch": ({"ids": [[1, 2]]}, "[2, n]"),
    "no tokens": ({"ids": np.zeros((B, 0), np.int64)}, "n of 1 or more"),
    "no tokens in lists": ({"ids": [[], []]}, "n of 1 or more"),
    "ragged": ({"ids": [[1, 2], [3]]}, "[2, n]"),
    "targets not asked for": ({"ids": IDS, "targets": IDS}, "head='target'"),
    "targets missing": ({"ids": IDS, "head": "target"}, "needs targets"),
    "targets too few": ({"ids": IDS, "head": "target", "targets": [[1], [1]]}, "[2, 8]"),
    "targets of another batch": ({"ids": IDS, "head": "target", "targets": IDS[:1]}, "targets have shape"),
    "targets too large": ({"ids": IDS, "head": "target", "targets": [[V] * 8] * B}, "targets hold 29"),
    "targets float": ({"ids": IDS, "head": "target", "targets": array(B, 8)}, "targets have dtype"),
    "unknown head": ({"ids": IDS, "head": "logits"}, "log_probs, target"),
    "out too small": ({"ids": IDS, "out": array(B, 7, V)}, "[2, 8, 29]"),
    "out float64": ({"ids": IDS, "out": array(B, 8, V, dtype=np.float64)}, "expected float32"),
    "out no array": ({"ids": IDS, "out": [[0.0]]}, "out is list"),
    "out read-only": ({"ids": IDS, "out": readonly()}, "read-only"),
    "segment_len 0": ({"ids": IDS, "segment_len": 0}, "segment_len is 0"),
    "segment_len float": ({"ids": IDS, "segment_len": 2.5}, "segment_len is 2.5"),
    "segment_len bool": ({"ids": IDS, "segment_len": True}, "segment_len is True"),
    "segment too long": ({"ids": [[1] * 9] * B, "segment_len": 9}, "1-9"),
    "second segment too long": ({"ids": [[1] * 40] * B, "segment_len": 20}, "20 tokens"),
}  # fmt: skip


@pytest.fixture
def bundle(exported) -> Exported:
    return exported("stepping", "kv", (1, 8), ("log_probs", "target"))


@pytest.fixture(params=["onnxruntime", "eager"])
def engine(bundle, request):
    return bundle.engine if request.param == "onnxruntime" else bundle.judge


def pair(engine):
    """Two sessions with the same past, at another buffer after each of three feeds."""
    a, b = engine.session(B), engine.session(B)
    for session in (a, b):
        session.feed(random_ids(engine.info.config, B, 8))
        session.feed(random_ids(engine.info.config, B, 5))
        session.reset([1])
        session.feed(random_ids(engine.info.config, B, 3))
    return a, b


def never_noticed(failed, other):
    """Same bits in memory, positions and all that follows."""
    assert same_arrays(failed._streams.state(), other._streams.state())
    for i, n in enumerate([1, 8, 20, 1, 3]):
        ids = random_ids(failed.info.config, B, n, seed=30 + i)
        np.testing.assert_array_equal(failed.feed(ids), other.feed(ids))
    assert same_arrays(failed._streams.state(), other._streams.state())


ORT_ONLY = {"unknown head", "segment too long", "second segment too long"}  # the eager judge can run these


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input(engine, name):
    if engine.backend == "eager" and name in ORT_ONLY:
        return
    arguments, says = WRONG[name]
    a, b = pair(engine)
    with pytest.raises(InputError) as e:
        a.feed(**arguments)
    assert says in one_line(e.value)
    never_noticed(a, b)


class Failing:
    """Stands in for `run_with_iobinding`: fails at the given call, before or after the graph has run."""

    def __init__(self, real, at, error, after):
        self.real, self.left, self.error, self.after = real, at, error, after

    def __call__(self, session, binding, *args):
        self.left -= 1
        if self.left or self.after:
            self.real(session, binding, *args)
        if not self.left:
            raise self.error


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("error", [RuntimeError("device lost"), KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_failure_in_the_middle_of_a_feed(bundle, at, error, after):
    """20 tokens are three calls: whichever fails, none of them counts."""
    a, b = pair(bundle.engine)
    for n in (20, 20, 8 if at == 1 else 20):  # and again, from another buffer
        with pytest.MonkeyPatch.context() as patch:
            failing = Failing(ort.InferenceSession.run_with_iobinding, at, error, after)
            patch.setattr(
                ort.InferenceSession, "run_with_iobinding", lambda self, binding, *x, f=failing: f(self, binding, *x)
            )
            with pytest.raises(type(error)):
                a.feed(random_ids(bundle.config, B, n, seed=9))
            assert failing.left == 0
        assert same_arrays(a._streams.state(), b._streams.state())
    never_noticed(a, b)


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt()])
def test_failure_while_binding(bundle, error, monkeypatch):
    """A binding that was made in part is not used later."""
    import txl_export.backends.onnxruntime as backend

    a, b = bundle.engine.session(B), bundle.engine.session(B)
    real, count = backend._bind_output, [0]

    def bind_output(*args):
        count[0] += 1
        if count[0] == 2:
            raise error
        real(*args)

    monkeypatch.setattr(backend, "_bind_output", bind_output)
    with pytest.raises(type(error)):
        a.feed(random_ids(bundle.config, B, 8))
    never_noticed(a, b)


def test_failure_of_the_reference(bundle, monkeypatch):
    from txl_export.reference.adaptive import AdaptiveSoftmax

    a, b = pair(bundle.judge)
    real, count = AdaptiveSoftmax.log_probs, [0]

    def log_probs(*args):
        count[0] += 1
        if count[0] == 2:
            raise RuntimeError("no memory left")
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(AdaptiveSoftmax, "log_probs", log_probs)
        with pytest.raises(RuntimeError):
            a.feed(random_ids(bundle.config, B, 20))
    never_noticed(a, b)


def test_failed_reset_after_failed_feed(bundle):
    """Streams can be reset after a failure, and only those change."""
    a, b = pair(bundle.engine)
    with pytest.raises(InputError):
        a.feed([[V], [0]])
    a.reset([0]), b.reset([0])
    never_noticed(a, b)
