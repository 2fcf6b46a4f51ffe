import pytest

from txl_export.units import parse_bytes, si


@pytest.mark.parametrize(
    "text, value",
    [("2GiB", 2 << 30), ("512 MiB", 512 << 20), ("1.5GB", 1_500_000_000), ("1kB", 1000), ("7", 7), ("7 b", 7)],
)
def test_sizes_are_read(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "GiB", "2 Gi", "-1GB", "1e9", "2XB", "1.5.GB"])
def test_sizes_that_are_none(text):
    with pytest.raises(ValueError, match="no size"):
        parse_bytes(text)


def test_numbers_as_people_read_them():
    assert [si(n, "B") for n in (7, 1234, 99_766_708)] == ["7 B", "1.23 kB", "99.8 MB"]
