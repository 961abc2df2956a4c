"""Small data of a user's own for every recipe, and a short run of each on it (see `resume_runs`)."""

import json
from pathlib import Path

import numpy as np
from own_texts import write_own_texts
from PIL import Image

# What a saved model is made of is imported by the recipe when the model is built, or by what uses the model.
PROGRAM = "import tfaccel.models.conditional_gan, tfaccel.models.centre_detector, tfaccel.models.losses\n"
PROGRAM += "import tfaccel.models.sequence_to_sequence\n" + Path(__file__).with_name("resume_runs.py").read_text()
CASES = [
    {"name": "images", "recipe": "image_classification", "data": "images.npz", "options": {"width": 8}},
    {"name": "gan", "recipe": "gan", "data": "images.npz", "options": {"latent_size": 4}},
    {"name": "transfer", "recipe": "transfer_learning", "data": "images.npz", "options": {"ema": True}},
    {"name": "autoencoder", "recipe": "autoencoder", "data": "images.npz", "options": {"latent_size": 3}},
    {"name": "detection", "recipe": "object_detection", "data": "boxes", "options": {"image_size": 32}},
    {
        "name": "convolutions",
        "recipe": "sequence_forecasting",
        "data": "rows.csv",
        "options": {"time_column": "time", "window": 8, "horizon": 4},
    },
    {
        "name": "gru",
        "recipe": "sequence_forecasting",
        "data": "rows.csv",
        "options": {"time_column": "time", "window": 8, "horizon": 4, "model": "gru"},
    },
    {"name": "classes", "recipe": "tabular_classification", "data": "rows.csv", "options": {"target": "kind"}},
    {"name": "numbers", "recipe": "tabular_regression", "data": "rows.csv", "options": {"target": "x"}},
    {
        "name": "towers",
        "recipe": "recommendation",
        "data": "views.csv",
        "options": {"user_features": "age", "item_features": "genre", "num_layers": 2, "id_dropout": 0.2},
    },
    {
        "name": "crosses",
        "recipe": "recommendation",
        "data": "views.csv",
        "options": {"model": "dcn", "num_buckets": 5},
    },
    {
        "name": "reader",
        "recipe": "text_classification",
        "data": "labels.csv",
        "options": {"num_words": 8, "model": "transformer"},
    },
    {"name": "characters", "recipe": "text_generation", "data": "long.txt", "options": {"width": 16, "num_layers": 1}},
    {"name": "pairs", "recipe": "translation", "data": "", "options": {"width": 32, "num_blocks": 1, "dropout": 0.1}},
    {
        "name": "summaries",
        "recipe": "summarization",
        "data": "summaries.csv",
        "options": {"width": 32, "num_words": 12, "ema": True},
    },
]


def write_own_data(folder: Path) -> None:
    write_own_texts(folder)
    (folder / "long.txt").write_text("over and over again. " * 400)
    generator = np.random.default_rng(0)
    labels = np.arange(48) % 3
    images = (generator.integers(0, 80, (48, 8, 8)) + 80 * labels[:, None, None]).astype(np.uint8)
    np.savez(folder / "images.npz", x_train=images, y_train=labels, x_test=images[:9], y_test=labels[:9])
    rows = [f"{i},{np.sin(i / 9):.3f},{'ab'[i % 2]}" for i in range(160)]
    (folder / "rows.csv").write_text("\n".join(["time,x,kind", *rows]))
    drawn = generator.integers(0, [7, 5, 2], (160, 3)).tolist()
    views = [f"u{user},{20 + user},i{item},{'xyz'[item % 3]},{click}" for user, item, click in drawn]
    (folder / "views.csv").write_text("\n".join(["user,age,item,genre,click", *views]))
    (folder / "boxes").mkdir()
    for i in range(60):
        Image.fromarray(np.full((32, 32), 4 * i, np.uint8)).save(folder / "boxes" / f"{i}.png")
    described = {
        "images": [{"id": i, "file_name": f"{i}.png"} for i in range(60)],
        "annotations": [{"id": i, "image_id": i, "category_id": 0, "bbox": [i % 16, 4, 12, 16]} for i in range(60)],
        "categories": [{"id": 0, "name": "grey"}],
    }
    (folder / "boxes" / "annotations.json").write_text(json.dumps(described))
