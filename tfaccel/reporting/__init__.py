"""Tables, plots and JSON reports, and simple baselines to compare a model with.

Names load their module on first use, since some of these import matplotlib or TensorFlow.
"""

from tfaccel.known_names import lazy_names

# Public name -> the module that defines it, and its name there if that differs.
_PUBLIC_NAMES = {
    "BaselineScores": "tfaccel.training.verdict.baseline_scores",
    "box_rows": "tfaccel.reporting.coco_scores",
    "central_sentence": "tfaccel.reporting.text_baselines",
    "check_coco_library": "tfaccel.reporting.coco_scores",
    "click_probabilities": "tfaccel.reporting.click_baselines",
    "compare_bounds": "tfaccel.reporting.density_baselines",
    "compare_forecasts": "tfaccel.reporting.forecast_scores:compare_with_baselines",
    "detection_scores": "tfaccel.reporting.detection_baselines",
    "exact_match_scores": "tfaccel.reporting.translation_baselines",
    "image_class_scores": "tfaccel.reporting.class_baselines",
    "interval_factors": "tfaccel.reporting.interval_calibration",
    "recognised_beside_gaussians": "tfaccel.reporting.recognised_samples",
    "regression_forecasts": "tfaccel.reporting.forecast_baselines",
    "save_anomalies": "tfaccel.reporting.anomalies",
    "save_box_picture": "tfaccel.reporting.box_picture",
    "save_confusions": "tfaccel.reporting.confusion_picture",
    "save_curve_picture": "tfaccel.reporting.curve_picture",
    "save_forecasts": "tfaccel.reporting.forecast_picture",
    "save_image_grid": "tfaccel.reporting.image_grid",
    "save_latent_map": "tfaccel.reporting.latent_map",
    "save_prediction_grid": "tfaccel.reporting.prediction_grid",
    "save_scatter_picture": "tfaccel.reporting.scatter_picture",
    "score_boxes": "tfaccel.reporting.coco_scores:coco_scores",
    "score_classes": "tfaccel.reporting.class_scores:class_scores",
    "score_clicks": "tfaccel.reporting.click_baselines",
    "score_forecasts": "tfaccel.reporting.forecast_scores:forecast_scores",
    "score_numbers": "tfaccel.reporting.class_scores",
    "show_comparison": "tfaccel.reporting.comparison_table",
    "show_table": "tfaccel.reporting.result_table",
    "show_text": "tfaccel.reporting.result_table",
    "softmax": "tfaccel.reporting.class_scores",
    "summary_scores": "tfaccel.reporting.summary_scores",
    "table_class_probabilities": "tfaccel.reporting.table_baselines:class_probabilities",
    "table_predictions": "tfaccel.reporting.table_baselines:predicted_numbers",
    "text_bit_scores": "tfaccel.reporting.text_baselines",
    "text_class_scores": "tfaccel.reporting.text_baselines",
    "two_main_directions": "tfaccel.reporting.latent_map",
    "with_factors": "tfaccel.reporting.interval_calibration",
    "write_json": "tfaccel.files",
    "write_text": "tfaccel.files",
}

__all__ = sorted(_PUBLIC_NAMES)
__getattr__, __dir__ = lazy_names(__name__, _PUBLIC_NAMES, __all__)
