"""The soft limit grows with the steps that are seen, and not for loops that go round."""

from surestep.trace.patience import HARD_LIMIT, SOFT_LIMIT, Patience


def after(*cuts):
    patience = Patience()
    for values, program, asked in cuts:
        patience.cut(values, program, asked)
    return patience.limit


def test_a_step_in_parts_counts_as_a_whole():
    assert after((1100, "a", False), (1200, "b", False), (700, "c", True)) == 3000


def test_layers_whose_parts_are_alike_are_one_step():
    assert after((1100, "a", False), (1000, "b", False), (1000, "b", False), (900, "c", True)) == 4000


def test_a_loop_that_goes_round_is_not():
    assert after((2000, "a", False), *[(1000, "b", False)] * 5, (10, "c", True)) == SOFT_LIMIT


def test_nor_is_what_is_longer_than_all_limits():
    assert after((HARD_LIMIT, "a", False), (1, "b", True)) == SOFT_LIMIT


def test_each_boundary_begins_anew_and_the_longest_step_counts():
    assert after((900, "a", True), (900, "b", True), (1100, "a", False), (400, "c", True), (1200, "d", True)) == 1500
