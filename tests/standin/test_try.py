import numpy as np, pytest
from tests.standin.plans import with_engines
from txl_export.runtime import Engine
from tests.helpers import random_ids
from tests.standin.fixtures import gpu


@pytest.mark.parametrize("layout,lens", [("ring", (1, 4, 8)), ("kv", (1, 8)), ("hidden", ("1-8",))])
def test_try(exported, gpu, tmp_path, layout, lens):
    made = exported("stepping", layout, lens, **({"segment_len": 8, "rewind": 3} if layout == "ring" else {}))
    b = with_engines(made.path, tmp_path / "b")
    eng = Engine.load(b, backend="tensorrt")
    ref = made.judge
    ours, theirs = eng.session(2), ref.session(2)
    rng = np.random.default_rng(0)
    for n in [8, 1, 1, 1, 8, 1, 1, 8, 8, 8, 1, 1, 1, 1, 1] * 3:
        ids = random_ids(made.config, 2, n, int(rng.integers(1000)))
        a, e = ours.feed(ids, 8), theirs.feed(ids, 8)
        np.testing.assert_allclose(a, e, rtol=0, atol=2e-5)
    print(gpu)
