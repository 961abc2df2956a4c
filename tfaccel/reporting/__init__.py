"""Tables, plots and JSON reports, and simple baselines to compare a model with.

Names load their module on first use, since some of these import matplotlib or TensorFlow.
"""

from tfaccel.known_names import lazy_names

# Public name -> the module that defines it, and its name there if that differs.
_PUBLIC_NAMES = {
    "BaselineScores": "tfaccel.training.verdict",
    "box_rows": "tfaccel.reporting.detections",
    "central_sentence": "tfaccel.reporting.texts",
    "check_coco_library": "tfaccel.reporting.detections",
    "click_probabilities": "tfaccel.reporting.classes",
    "compare_bounds": "tfaccel.reporting.samples",
    "compare_forecasts": "tfaccel.reporting.forecasts:compare_with_baselines",
    "detection_scores": "tfaccel.reporting.detections",
    "exact_match_scores": "tfaccel.reporting.texts",
    "image_class_scores": "tfaccel.reporting.classes",
    "nearest_translations": "tfaccel.reporting.texts",
    "interval_factors": "tfaccel.reporting.forecasts",
    "recognised_beside_gaussians": "tfaccel.reporting.samples",
    "regression_forecasts": "tfaccel.reporting.forecasts",
    "save_anomalies": "tfaccel.reporting.tables",
    "save_box_picture": "tfaccel.reporting.image_pictures",
    "save_confusions": "tfaccel.reporting.classes",
    "save_curve_picture": "tfaccel.reporting.charts",
    "save_forecasts": "tfaccel.reporting.forecasts",
    "save_image_grid": "tfaccel.reporting.image_pictures",
    "save_latent_map": "tfaccel.reporting.image_pictures",
    "save_prediction_grid": "tfaccel.reporting.image_pictures",
    "save_scatter_picture": "tfaccel.reporting.charts",
    "score_boxes": "tfaccel.reporting.detections:coco_scores",
    "score_classes": "tfaccel.reporting.classes:class_scores",
    "score_clicks": "tfaccel.reporting.classes",
    "score_forecasts": "tfaccel.reporting.forecasts:forecast_scores",
    "score_numbers": "tfaccel.reporting.classes",
    "show_comparison": "tfaccel.reporting.tables",
    "show_padding": "tfaccel.reporting.tables",
    "show_table": "tfaccel.reporting.tables",
    "show_text": "tfaccel.reporting.tables",
    "softmax": "tfaccel.reporting.classes",
    "summary_scores": "tfaccel.reporting.texts",
    "table_class_probabilities": "tfaccel.reporting.classes:class_probabilities",
    "table_predictions": "tfaccel.reporting.classes:predicted_numbers",
    "text_bit_scores": "tfaccel.reporting.texts",
    "text_class_scores": "tfaccel.reporting.texts",
    "translation_scores": "tfaccel.reporting.texts",
    "two_main_directions": "tfaccel.reporting.image_pictures",
    "with_factors": "tfaccel.reporting.forecasts",
    "write_json": "tfaccel.files",
    "write_text": "tfaccel.files",
}

__all__ = sorted(_PUBLIC_NAMES)
__getattr__, __dir__ = lazy_names(__name__, _PUBLIC_NAMES, __all__)
