"""Rules for what one call runs, and for batch normalization."""

from planning_machines import EIGHT_H100, TWO_CORES, workload

from tfaccel.planning.candidates import default_plan


def test_steps_of_a_call_are_measured_unless_they_are_set():
    plan = default_plan(TWO_CORES, workload())
    assert plan.steps_per_execution is None
    assert dict(plan.reasons)["steps_per_execution"].startswith("A loop in the graph; while training, so many steps")
    assert default_plan(TWO_CORES, workload(), steps_per_execution=50).steps_per_execution == 50


def test_batch_normalization_sees_the_global_batch_and_says_where_not():
    def reason(hardware, **fixed):
        plan = default_plan(hardware, workload(), **fixed)
        assert plan.synchronize_batch_norm
        return dict(plan.reasons)["synchronize_batch_norm"]

    assert reason(TWO_CORES) == "Batch normalization takes its statistics over the whole batch."
    in_parts = reason(TWO_CORES, accumulation_steps=4)
    assert in_parts.endswith("over each of 4 micro-batches, which gives other numbers than one step.")
    several = reason(EIGHT_H100, jit_compile=True)
    assert "over the rows of one replica they would depend on the number of replicas" in several
    assert several.endswith("XLA cannot compile the sums over replicas, and stays off for models that have it.")
    assert "XLA" not in reason(EIGHT_H100, jit_compile=False)
    plan = default_plan(EIGHT_H100, workload(), synchronize_batch_norm=False)
    assert (plan.synchronize_batch_norm, dict(plan.reasons)["synchronize_batch_norm"]) == (False, "Set by you.")
