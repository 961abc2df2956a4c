"""Training data: users' data as datasets of global batches.

The names below load their module on first use, since some modules import TensorFlow.
"""

from tfaccel.known_names import lazy_names

# Public name -> the module that defines it, followed by its name there if that differs.
_PUBLIC_NAMES = {
    "Augmentation": "tfaccel.data.pipeline",
    "Batches": "tfaccel.data.epochs",
    "BadData": "tfaccel.data.bad_data",
    "BoxData": "tfaccel.data.box_data",
    "Catalogue": "tfaccel.data.interactions",
    "CacheOptions": "tfaccel.data.cache",
    "ExampleData": "tfaccel.data.images.generative_data",
    "GanData": "tfaccel.data.images.generative_data",
    "ImageBatches": "tfaccel.data.images.image_data",
    "ImageData": "tfaccel.data.images.image_data",
    "ImageInput": "tfaccel.data.raw_input",
    "ImageMoves": "tfaccel.data.images.image_data",
    "InteractionData": "tfaccel.data.interactions",
    "Pipeline": "tfaccel.data.pipeline",
    "PresetTextData": "tfaccel.data.texts.text_data",
    "SeriesData": "tfaccel.data.series_data",
    "TableData": "tfaccel.data.tables.table_data",
    "TextBatches": "tfaccel.data.in_memory",
    "TextData": "tfaccel.data.texts.text_data",
    "TextInput": "tfaccel.data.raw_input",
    "TextPieces": "tfaccel.data.texts.text_data",
    "Vocabulary": "tfaccel.data.texts.vocabulary",
    "dates_in_words": "tfaccel.data.texts.text_data",
    "digit_images": "tfaccel.data.images.image_set:digits",
    "documentation_passages": "tfaccel.data.texts.files",
    "documentation_summaries": "tfaccel.data.texts.text_data",
    "documentation_text": "tfaccel.data.texts.documentation",
    "encode_by_preset": "tfaccel.data.texts.text_data",
    "encode_pairs": "tfaccel.data.texts.text_data",
    "encode_pairs_to_copy": "tfaccel.data.texts.text_data",
    "few_digit_images": "tfaccel.data.images.image_set:few_digits",
    "find_preset": "tfaccel.data.hub_presets",
    "first_sentence": "tfaccel.data.texts.documentation",
    "generated_clicks": "tfaccel.data.interactions:generated_clicks",
    "pendulum_series": "tfaccel.data.series_set",
    "read_coco": "tfaccel.data.coco_files",
    "read_image_set": "tfaccel.data.images.files",
    "read_interactions": "tfaccel.data.interactions",
    "read_labelled_texts": "tfaccel.data.texts.files",
    "read_series": "tfaccel.data.series_set",
    "read_summaries": "tfaccel.data.texts.text_data",
    "read_text_parts": "tfaccel.data.texts.files",
    "read_translations": "tfaccel.data.texts.text_data",
    "scenes_of_digits": "tfaccel.data.box_data:digit_scenes",
    "season_length": "tfaccel.data.series_set",
    "seasonal_naive": "tfaccel.data.series_set",
    "split_text": "tfaccel.data.texts.vocabulary",
    "unknown_words": "tfaccel.data.texts.text_data",
    "write_tfrecords": "tfaccel.data.tfrecord_files",
}

__all__ = sorted(_PUBLIC_NAMES)
__getattr__, __dir__ = lazy_names(__name__, _PUBLIC_NAMES, __all__)
