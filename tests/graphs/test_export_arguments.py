"""What `export` refuses before it traces anything."""

import numpy as np
import pytest

from tests.bundles import checkpoint_of, one_line
from txl_export import export
from txl_export.errors import ConfigError, InputError


@pytest.mark.parametrize(
    "arguments, error, says",
    [
        ({"layout": "paged"}, ConfigError, "ring, kv, hidden"),
        ({"precision": "fp8"}, InputError, "fp32, fp16, bf16, int8, int4"),
        ({"precision": "int8", "memory_precision": "int8"}, InputError, "memory cannot be in 'int8'"),
        ({"precision": "fp16", "memory_precision": "bf16"}, InputError, "memory cannot be in 'bf16'"),
        ({"precision": "fp16", "tensors": {"layers.*.W_9": "fp32"}}, InputError, "W_9"),
        ({"precision": "fp16", "tensors": {"logits": "fp8"}}, InputError, "fp32 or fp16"),
        ({"calibration": b"text"}, InputError, "fp32 needs no calibration"),
        ({"precision": "fp16", "calibration": b"text"}, InputError, "no vocabulary"),
        ({"precision": "fp16", "calibration": np.array([1, 2, 99, 4] * 4)}, InputError, "99"),
        ({"head": "probs"}, InputError, "log_probs"),
        ({"head": ()}, InputError, "log_probs"),
        ({"mem_len": -1}, InputError, "mem_len is -1"),
        ({"segment_lens": ()}, InputError, "segment length"),
        ({"segment_lens": (0,)}, InputError, "segment length 0"),
        ({"segment_lens": ("8-1",)}, InputError, "8-1"),
        ({"segment_lens": (1, 8), "segment_len": 9, "layout": "kv"}, InputError, "1 to 8"),
        ({"segment_lens": ("1-8",)}, InputError, "not 1-8"),
        ({"rewind": -1}, InputError, "rewind is -1"),
        ({"rewind": "a"}, InputError, "rewind is 'a'"),
        ({"rewind": 1, "layout": "kv"}, InputError, "rewind is 1"),
        ({"segment_len": 0}, InputError, "segment_len is 0"),
        ({"top_k": 0}, InputError, "top_k is 0"),
    ],
)
def test_refused_in_one_line(tmp_path, arguments, error, says):
    with pytest.raises(error) as e:
        export(checkpoint_of("paper"), tmp_path / "bundle", **arguments)
    assert says in one_line(e.value)
    assert not list(tmp_path.iterdir())


def test_same_length_needs_a_key_to_see(tmp_path):
    with pytest.raises(ConfigError, match="mem_len of 1 or more"):
        export(checkpoint_of("same_length"), tmp_path / "bundle", mem_len=0)
