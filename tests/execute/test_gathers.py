"""XLA's text of compiled programs, as several platforms write it."""

from __future__ import annotations

import pytest

from surestep.execute.gathers import gathered


def program(*lines: str) -> str:
    return "\n".join(["HloModule jit_surestep", "", "%inner (param_0: f32[8]) -> f32[8] {", "}", "", "ENTRY %main {", *lines, "}"])


PARAMETERS = (
    '  %param.1 = f32[4,8]{1,0} parameter(2), sharding={devices=[2,1]<=[2]}, metadata={op_name="leaves[0]"}',
    "  %param.2 = bf16[8,8]{1,0:T(8,128)(2,1)} parameter(3), sharding={devices=[2,1]<=[2]}",
)
SIZES = {2: 64, 3: 128}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], set()),
        (["  %all-gather = f32[8,8]{1,0} all-gather(%param.1), channel_id=1, replica_groups={{0,1}}, dimensions={0}"], {2}),
        (["  %all-gather = f32[8,8]{1,0} all-gather(f32[4,8]{1,0:T(8,128)} %param.1), channel_id=1, dimensions={0}"], {2}),
        (
            [
                "  %copy_fusion = f32[8,4]{0,1} fusion(%param.1), kind=kLoop, calls=%inner",
                "  %convert.1 = bf16[8,4]{0,1} convert(%copy_fusion)",
                "  ROOT %all-gather.3 = bf16[8,8]{0,1} all-gather(%convert.1), channel_id=1, dimensions={1}",
            ],
            {2},
        ),
        (
            [
                "  %ag = (f32[8,8]{1,0}, bf16[16,8]{1,0}) all-gather(%param.1, %param.2), channel_id=1, dimensions={0}",
                "  %get-tuple-element = bf16[16,8]{1,0} get-tuple-element(%ag), index=1",
            ],
            {2, 3},
        ),
        (
            [
                "  %start = ((f32[4,8], bf16[8,8]), (f32[8,8]{1,0}, bf16[9,8]{1,0})) all-gather-start(%param.1, %param.2), dimensions={0}",
                "  %done = (f32[8,8]{1,0}, bf16[9,8]{1,0}) all-gather-done(%start)",
            ],
            {2},
        ),
        (
            [
                "  %ag.1 = bf16[8,12]{1,0} all-gather(%param.2), channel_id=1, dimensions={1}",
                "  %get = bf16[8,12]{1,0} bitcast(%ag.1)",
                "  %ag.2 = bf16[8,16]{1,0} all-gather(%get), channel_id=2, dimensions={0}",
            ],
            {3},
        ),
        (["  %all-gather = f32[6,8]{1,0} all-gather(%param.1), channel_id=1, dimensions={0}"], set()),
        (
            [
                "  %add_fusion = f32[4,8]{1,0} fusion(%param.1, %param.1), kind=kLoop, calls=%inner",
                "  %all-gather = f32[8,8]{1,0} all-gather(%add_fusion), channel_id=1, dimensions={0}",
            ],
            set(),
        ),
        (["  %all-gather = f32[8,8]{1,0} all-gather(%somewhere_else), channel_id=1, dimensions={0}"], set()),
    ],
    ids=[
        "nothing",
        "plain",
        "typed operands",
        "cast before",
        "two at once",
        "asynchronous",
        "in two steps",
        "in part",
        "computed",
        "others",
    ],
)
def test_parameters_that_are_gathered_whole(lines, expected):
    assert gathered(program(*PARAMETERS, *lines), SIZES) == expected
    assert gathered(program(*PARAMETERS, *lines), {}) == set()
