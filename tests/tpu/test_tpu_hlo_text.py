import pytest

from tfaccel.extras.tpu.graph_findings import find_in_program, padding_waste

PROGRAM = """
ENTRY main {
  %a = f32[8,4]{1,0} parameter(0), metadata={op_name="XLA_Args"}
  %w = s64[<=8,1]{1,0} set-dimension-size(s64[8,1]{1,0} %x, s32[] %y), metadata={op_type="Where" op_name="m/mask/Where"}
  %s = s64[<=8]{0} reshape(s64[<=8,1]{1,0} %w), metadata={op_type="Reshape" op_name="m/dense/Reshape"}
  %q = (f32[4,4]{1,0}, f32[4]{0}) custom-call(f32[4,4] %z), custom_call_target="Qr", metadata={op_name="m/qr/Qr"}
  %c = f32[4] custom-call(f32[4] %z), custom_call_target="my_kernel", metadata={op_name="m/own/Call"}
}
"""


def test_dynamic_dimensions_are_told_where_they_begin_and_unknown_custom_calls():
    found = find_in_program(PROGRAM, lambda name: name.split("/")[1] if "/" in name else name)
    told = [(finding.kind, str(finding)) for finding in found]
    assert told == [("dynamic dimension", "Where in mask"), ("custom call", "my_kernel in own")]


@pytest.mark.parametrize(
    ("instruction", "waste"),
    [
        ("f32[8,128]{1,0:T(8,128)} add(%b)", 0.0),
        ("f32[8,32]{1,0:T(8,128)} add(%b)", 0.75),
        ("f32[32,8]{0,1:T(8,128)} add(%b)", 0.75),  # stored the other way round
        ("bf16[2,8,64]{2,1,0:T(8,128)(2,1)} fusion(%b)", 0.5),
        ("f32[96]{0:T(128)} add(%b)", 0.25),
        ("(f32[8,128]{1,0:T(8,128)}, f32[4,128]{1,0:T(8,128)}) fusion(%b)", 0.25),
        ("f32[8,32]{1,0} add(%b)", 0.0),  # not tiled
        ("f32[8,32]{1,0:T(8,128)} bitcast(%b)", 0.0),  # writes nothing
    ],
)
def test_padding_follows_from_layout_and_tiles(instruction, waste):
    program = f"%inner {{\n  %x = f32[1,1]{{1,0:T(8,128)}} add(%y)\n}}\n\nENTRY %main {{\n  %a = {instruction}\n}}"
    assert padding_waste(program) == pytest.approx(waste)
