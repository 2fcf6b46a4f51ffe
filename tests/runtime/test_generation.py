"""Sampling, generation and scoring."""

import itertools

import numpy as np
import pytest

from tests.bundles import Exported, one_line, same_arrays
from tests.helpers import random_ids
from txl_export.errors import InputError
from txl_export.runtime.sampling import Sampler, stop_sequences

PROMPT = [1, 2, 3]
P = np.array([0.05, 0.5, 0.15, 0.3])
LOG_P = np.log(P)[None, None]


@pytest.fixture
def bundle(exported) -> Exported:
    return exported("stepping", "kv", (1, 8), ("log_probs", "target"))


def frequencies(n=20000, **arguments):
    sampler = Sampler(seed=1, **arguments)
    return np.bincount([sampler(LOG_P) for _ in range(n)], minlength=4) / n


def near(found, p, n=20000):
    p = np.asarray(p) / np.sum(p)
    assert (np.abs(found - p) <= 4 * np.sqrt(p * (1 - p) / n)).all(), (found, p)


def test_sampler_frequencies():
    near(frequencies(), P)
    near(frequencies(temperature=2.0), np.sqrt(P))
    near(frequencies(temperature=0.5), P**2)
    near(frequencies(top_k=2), [0, 0.5, 0, 0.3])
    near(frequencies(top_k=99), P)
    near(frequencies(top_p=0.79), [0, 0.5, 0, 0.3])
    near(frequencies(top_p=0.9), [0, 0.5, 0.15, 0.3])
    near(frequencies(top_p=0.4), [0, 1, 0, 0])
    near(frequencies(top_p=1.0), P)
    near(frequencies(top_k=3, top_p=0.7), [0, 0.5, 0, 0.3])  # of three, 0.53 + 0.32


def test_sampler_takes_logits_and_top_k_answers():
    near(np.bincount([t for s in [Sampler(seed=2)] for t in (s(LOG_P + 7) for _ in range(9000))]) / 9000, P, 9000)
    sampler = Sampler(seed=2)
    answer = (np.log(P[[1, 3]])[None, None], np.array([[[11, 13]]]))
    drawn = [sampler(answer) for _ in range(9000)]
    assert set(drawn) == {11, 13}
    near(np.array([drawn.count(11), drawn.count(13)]) / 9000, [0.5, 0.3], 9000)
    assert Sampler(temperature=0)(answer) == 11


def test_sampler_uses_the_last_position():
    two = np.concatenate([LOG_P[..., ::-1] * 9, LOG_P], axis=1)
    assert Sampler(temperature=0)(two) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_p": float("nan")},
        {"stop": [[]]},
        {"max_new_tokens": -1},
        {"max_new_tokens": 2.5},
    ],
)
def test_generate_refuses_at_once(bundle, arguments):
    session = bundle.engine.session(1)
    with pytest.raises(InputError) as e:
        session.generate(PROMPT, **{"max_new_tokens": 3, **arguments})
    one_line(e.value)
    assert session.positions.tolist() == [0]


@pytest.mark.parametrize("prompt", [[], [99], [1.5], [[1], [2]], "ab"])
def test_generate_refuses_a_wrong_prompt(bundle, prompt):
    session = bundle.engine.session(1)
    with pytest.raises(InputError) as e:
        list(session.generate(prompt, 3))
    one_line(e.value)
    assert session.positions.tolist() == [0]


def test_generate_is_for_one_stream(bundle):
    with pytest.raises(InputError, match="batch_size 1"):
        bundle.engine.session(2).generate(PROMPT, 3)


def test_temperature_0_takes_the_most_probable(bundle):
    session = bundle.engine.session(1)
    answer, expected = session.feed([PROMPT]), []
    for _ in range(20):
        expected.append(int(answer[0, -1].argmax()))
        answer = session.feed([[expected[-1]]])
    assert list(bundle.engine.session(1).generate(PROMPT, 20, temperature=0)) == expected
    assert list(bundle.engine.session(1).generate(PROMPT, 20, top_k=1, seed=5)) == expected
    assert list(bundle.engine.session(1).generate(np.array(PROMPT), 20, top_p=1e-9)) == expected
    assert list(bundle.judge.session(1).generate(PROMPT, 20, temperature=0)) == expected


def test_seed(bundle):
    def run(seed):
        return list(bundle.engine.session(1).generate(PROMPT, 30, temperature=1.5, seed=seed))

    assert run(3) == run(3) and run(3) != run(4)
    assert len(set(run(3))) > 5


def test_memory_holds_prompt_and_all_tokens(bundle):
    session = bundle.engine.session(1)
    tokens = list(session.generate(PROMPT, 12, seed=0))
    expected = bundle.engine.session(1)
    expected.feed([PROMPT])
    for t in tokens:
        expected.feed([[t]])
    assert session.positions.tolist() == [15]
    assert same_arrays(session._streams.state(), expected._streams.state())
    more = list(session.generate([7], 3, temperature=0))  # goes on
    expected.feed([[7]])
    assert session.positions.tolist() == [19] and len(more) == 3


@pytest.mark.parametrize("stop_after", [1, 4])
def test_memory_when_the_consumer_stops_early(bundle, stop_after):
    session, expected = bundle.engine.session(1), bundle.engine.session(1)
    expected.feed([PROMPT])
    generation = session.generate(PROMPT, 12, seed=0)
    for t in itertools.islice(generation, stop_after):
        expected.feed([[t]])
    generation.close()
    assert session.positions.tolist() == [3 + stop_after]
    assert same_arrays(session._streams.state(), expected._streams.state())


def test_stop(bundle):
    def run(stop):
        return list(bundle.engine.session(1).generate(PROMPT, 40, temperature=1.5, seed=3, stop=stop))

    free = run(())
    last = next(i for i in range(5, 40) if free[i] not in free[:i])
    assert run([free[last]]) == free[: last + 1]  # the token that ends it is yielded
    assert run([np.int64(free[last])]) == free[: last + 1]
    assert run([tuple(free[last - 2 : last + 1])]) == free[: last + 1]
    assert run([[28, 28, 28, 28], tuple(free[last - 1 : last + 1])]) == free[: last + 1]
    assert run([tuple(free[last - 1 : last + 1][::-1])]) == free  # a sequence must come in its order
    assert stop_sequences([1, (2, 3)]) == [(1,), (2, 3)]


def test_nothing_new(bundle):
    session = bundle.engine.session(1)
    assert list(session.generate(PROMPT, 0)) == []
    assert session.positions.tolist() == [3]


def test_generation_needs_a_head_that_names_tokens(exported):
    kinds = ("log_probs", "logits", "target", "top_k", "features")
    engine = exported("adaptive", "kv", ("1-8",), (*kinds, *(f"{k}@last" for k in kinds))).engine
    session = engine.session(1)
    assert session._generation_head() == "log_probs@last"
    assert len(list(session.generate(PROMPT, 4, seed=1))) == 4


@pytest.mark.parametrize("backend", ["onnxruntime", "eager"])
@pytest.mark.parametrize("n", [2, 8, 9, 30])
def test_score_is_the_mean_of_its_tokens(bundle, backend, n):
    engine = bundle.engine if backend == "onnxruntime" else bundle.judge
    ids = random_ids(bundle.config, 1, n)
    log_probs = bundle.judge.session(1).feed(ids[:, :-1], segment_len=8)
    by_hand = -np.take_along_axis(log_probs[0].astype(np.float64), ids[0, 1:, None], 1).mean()
    done = []
    assert engine.score(ids[0], progress=done.append) == pytest.approx(by_hand, abs=1e-5)
    assert done[-1] == n - 1 and done == sorted(set(done))


def test_score_without_head_target(exported):
    """The same numbers from head log_probs, and from another cut under same_length."""
    bundle = exported("sliding", "kv", (1, 8))
    ids = random_ids(bundle.config, 1, 25)[0]
    scores = [bundle.engine.score(ids, segment_len=s) for s in (None, 3)]
    assert scores == pytest.approx([bundle.judge.score(ids)] * 2, abs=1e-5)


@pytest.mark.parametrize("ids", [[], [1], [[1, 2]], [1.0, 2.0], [1, 99], [99, 1]])
def test_score_refuses(bundle, ids):
    with pytest.raises(InputError) as e:
        bundle.engine.score(ids)
    one_line(e.value)


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": "x"}, {"temperature": None}, {"temperature": float("nan")}, {"top_k": 1.5}, {"top_k": True},
        {"top_p": "x"}, {"seed": -1}, {"seed": 1.5}, {"stop": 5}, {"stop": "x"}, {"stop": [1.5]}, {"stop": [[1, "a"]]},
    ],
)  # fmt: skip
def test_odd_arguments_are_refused_before_the_prompt_is_fed(exported, bad):
    session = exported("stepping", "kv", (1, 8), ("log_probs", "target")).engine.session()
    with pytest.raises(InputError) as e:
        list(session.generate([1, 2], 2, **bad))
    assert "\n" not in str(e.value) and next(iter(bad)) in str(e.value)
    assert session.positions[0] == 0


def test_a_tiny_temperature_takes_the_most_probable_token(exported):
    engine = exported("stepping", "kv", (1, 8), ("log_probs", "target")).engine
    tiny = list(engine.session().generate([1, 2], 6, temperature=5e-324, seed=0))
    assert tiny == list(engine.session().generate([1, 2], 6, temperature=0))


@pytest.mark.parametrize(
    "bad",
    [
        {"ids": [1, 2, 999]}, {"ids": [1]}, {"ids": [[1, 2]]}, {"ids": [1, 2], "segment_len": -1},
        {"ids": [1, 2], "segment_len": 0}, {"ids": [1, 2], "segment_len": 1.5},
    ],
)  # fmt: skip
def test_score_refuses_what_it_cannot_score(exported, bad):
    engine = exported("stepping", "kv", (1, 8), ("log_probs", "target")).engine
    with pytest.raises(InputError) as e:
        engine.score(**bad)
    assert "\n" not in str(e.value)
