"""A figure of every kind, with names and numbers that are hard to place."""

from types import SimpleNamespace

import numpy as np

from tfaccel.costs.model_cost import LayerCost, StepCost
from tfaccel.extras.estimates.interconnect import known_interconnect
from tfaccel.extras.estimates.scaling import ScalingEstimate, ScalingOptions, scaling_figure, scaling_rows
from tfaccel.measuring.roofline import Roofline
from tfaccel.planning.machine_ceilings import MachineCeilings
from tfaccel.planning.plan import Plan
from tfaccel.planning.step_of_one_device import StepOfOneDevice
from tfaccel.reporting.charts import (
    SizedForm,
    curve_figure,
    importance_figure,
    learning_rate_figure,
    parallel_coordinates_figure,
    roofline_figure,
    scatter_figure,
    size_metric_figure,
)
from tfaccel.reporting.classes import confusion_figure
from tfaccel.reporting.forecasts import Forecast, forecast_figure
from tfaccel.reporting.image_pictures import box_figure, image_grid_figure, latent_figure, prediction_figure

LONG = ("square", "circle", "a rather long name of a class", "WWWWWWWWWWWWWWWWWWWWWW", "猫", "price in $ and $")
IMAGES = np.random.default_rng(0).random((24, 8, 8, 1))
LABELS = np.arange(24) % len(LONG)


def found(boxes, labels, scores):
    """Detections as a detector returns them."""
    return SimpleNamespace(
        boxes=np.array(boxes, float).reshape(-1, 4), labels=np.array(labels, int), scores=np.array(scores, float)
    )


def boxes():
    """Boxes that cover each other nearly, one beyond the lower edge, one too unsure to be drawn."""
    true = np.array([[[0.0, 0, 10, 10], [20, 20, 30, 30]], [[5, 5, 15, 15], [0, 0, 0, 0]]])
    crowd = [[shift, shift, 10 + shift, 10 + shift] for shift in range(6)]
    detections = [
        found(crowd, range(6), [0.99, 0.9, 0.8, 0.7, 0.6, 0.5]),
        found([[30, 30, 40, 40], [1, 1, 5, 5]], [2, 3], [0.7, 0.1]),
    ]
    labels = np.array([[0, 1], [0, -1]])
    return box_figure(np.zeros((2, 40, 40, 1)), boxes=true, labels=labels, detections=detections, class_names=LONG)


def forecasts(times=None):
    """Three forecasts beside each other and below."""
    wave = np.sin(np.arange(60.0) / 4)
    one = Forecast("sales", wave[:40], wave[40:], wave[40:, None] + [-0.4, 0.2, 0.5], wave[20:40], times)
    return forecast_figure([one] * 3, num_columns=2, interval="80 % interval", baseline="seasonal naive, season 24")


def scaling():
    """Predicted scaling over many machines, with what was measured on two."""
    step = StepOfOneDevice(step_seconds=0.1, batch_size=64, gradient_bytes=(10**8,))
    link, options = known_interconnect("dgx_a100"), ScalingOptions()
    rows = scaling_rows(step, link, [1, 2, 8, 64, 1024], options)
    name = "a workload with a rather long name for a title"
    estimate = ScalingEstimate(workload=name, options=options, step=step, interconnect=link, rows=rows)
    return scaling_figure(estimate, measured={2: [900.0, 1100.0]})


def trials():
    """Every kind of value, some trials without one, numbers near each other."""
    values = [
        {"rate": 0.1, "model": "a", "ema": True, "same": 3, "near": 1},
        {"rate": 0.001, "model": "transformer", "ema": False, "same": 3, "units": 8, "near": 2},
        {"rate": 0.01, "model": "c", "ema": False, "same": 3, "a_hyperparameter_with_a_long_name": 0.5, "near": 99},
    ]
    names = ["rate", "model", "ema", "same", "units", "a_hyperparameter_with_a_long_name", "near"]
    return parallel_coordinates_figure(
        values, [0.1, 0.2, 0.3], names=names, objective="val_accuracy", rising=True, logarithmic=["rate"]
    )


def forms():
    """Forms of nearly one size, and one far below."""
    sizes = {
        "float32": (83000, 0.98, "float"),
        "float16": (42000, 0.98, "passes"),
        "dynamic": (22500, 0.979, "passes"),
        "int8": (22000, 0.978, "winner"),
        "qat": (22300, 0.9785, "passes"),
        "prune+int8": (22100, 0.94, "fails"),
        "broken": (1, float("nan"), "fails"),
    }
    drawn = [SizedForm(name, *values) for name, values in sizes.items()]
    return size_metric_figure(drawn, metric="accuracy", limit=0.97)


def confusions(num_classes=10):
    """Two models side by side."""
    matrix = np.eye(num_classes, dtype=int) * 9 + 1
    names = tuple(f"a class with number {number}" for number in range(num_classes))
    return confusion_figure({"network": matrix, "gradient boosting": matrix}, class_names=names)


def roof():
    """Layers with equal and with far apart intensities, and one without matrix products."""
    sizes = {"a rather long name of a layer": (10**9, 10**6), "twin": (10**9, 10**6), "small": (10**5, 10**5)}
    rows = [LayerCost(name=name, matrix_flops=flops, least_bytes=num) for name, (flops, num) in sizes.items()]
    return roofline_figure(
        Roofline(
            workload="price in $ and $",
            plan=Plan(strategy="none", devices=("CPU:0",), global_batch_size=8),
            ceilings=MachineCeilings(
                device="CPU", matrix_flops_per_second={"float32": 1e11, "bfloat16": 4e11}, bytes_per_second=1e10
            ),
            cost=StepCost(rows=(*rows, LayerCost(name="relu", least_bytes=10**6))),
            step_seconds=0.03,
            cpu_utilization=0.9,
        )
    )


DATES = np.datetime64("2024-11-20") + np.arange(60) * np.timedelta64(1, "D")
FIGURES = {
    "boxes": boxes,
    "confusions of 2": lambda: confusions(2),
    "confusions of 10": confusions,
    "confusions of 40": lambda: confusions(40),
    "curves": lambda: curve_figure(
        {"fine-tuned": [0.5, 0.8, 0.9], "from scratch": [0.1, 0.3, 0.6]}, name="accuracy on the test images"
    ),
    "scaling": scaling,
    "one point": lambda: curve_figure({"one": [0.5]}, name="accuracy"),
    "forecasts": forecasts,
    "forecasts of dates": lambda: forecasts(DATES),
    "grid": lambda: image_grid_figure(IMAGES, captions=[f"{LONG[label]}: {-17 * label}" for label in LABELS]),
    "importance": lambda: importance_figure(
        {"learning_rate": 0.6, "a_hyperparameter_with_a_name_that_is_very_long_indeed": 0.4}, objective="val_loss"
    ),
    "learning rates": lambda: learning_rate_figure(
        [1e-7, 1e-3, 10.0], [3.0, 2.0, 9.0], [3.0, 2.9, 9.0], suggestion=1e-3
    ),
    "latent images": lambda: latent_figure(
        np.random.default_rng(0).normal(size=(24, 2)), labels=LABELS, class_names=LONG, images=IMAGES
    ),
    "latent dots": lambda: latent_figure(np.zeros((24, 2)), labels=LABELS, class_names=LONG),
    "predictions": lambda: prediction_figure(
        IMAGES, labels=LABELS, predictions=(LABELS + np.arange(24) // 12) % len(LONG), class_names=LONG
    ),
    "scatter": lambda: scatter_figure(
        np.arange(9.0), {"network": np.arange(9.0), "ridge regression": np.arange(9.0)[::-1]}, name="price in $ and $"
    ),
    "constant": lambda: scatter_figure(np.ones(9), {"constant": np.ones(9)}, name="price"),
    "trials": trials,
    "roofline": roof,
    "forms": forms,
}
