"""The benchmark of what chooses trials: its figures compare the same seeds."""

from tfaccel.benchmarks import sampler_suite
from tfaccel.scripts.benchmark import chosen_figures


def test_figures_compare_the_same_seeds():
    def found(*losses, seconds):
        return {
            "losses": list(losses),
            "values": [{"rate": loss} for loss in losses],
            "suggestion_seconds": [seconds] * 3,
        }

    alone = [found(0.5, 0.25, seconds=0.01), found(None, 0.5, seconds=0.02)]
    tpe = [found(0.5, 0.25, seconds=0.02), found(0.75, 1.0, seconds=0.02)]
    figures = sampler_suite.sampler_figures({sampler_suite.ALONE: alone, "tpe": tpe}, 2)
    by_quantity = {(figure.name, figure.quantity): figure for figure in figures}
    ratio = by_quantity["tpe", "best val_loss / Optuna alone"]
    assert (ratio.values, ratio.at_most, ratio.met) == ((1.0, 1.5), sampler_suite.MAX_LOSS, False)
    assert by_quantity["tpe", "processor time of a suggestion / Optuna alone"].values == (2.0, 1.0)
    assert by_quantity["tpe", "the trials are those of Optuna alone (1) or not (0)"].values == (1.0, 0.0)
    assert chosen_figures("samplers", ["all"]) == ["tpe", "bayesian"]
