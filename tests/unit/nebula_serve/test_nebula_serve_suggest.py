"""Names close to one that was mistyped."""

from nebula_serve.suggest import did_you_mean, nearest_names


def test_the_nearest_come_first_and_case_does_not_matter() -> None:
    assert nearest_names("ROUTR", ["Frontend", "Router"])[0] == "Router"


def test_without_a_near_name_the_valid_ones_are_listed() -> None:
    assert did_you_mean("zzz", ["port", "host"]) == "valid: port, host"


def test_a_long_list_is_cut() -> None:
    assert did_you_mean("#", [f"key{i}" for i in range(99)]).endswith("key11, ...")


def test_nothing_valid_is_said() -> None:
    assert did_you_mean("x", []) == "there are none"
