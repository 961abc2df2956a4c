"""Pictures written whole or not at all, and texts that Pillow's own font can draw."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

BLACK, GREY, LIGHT, WHITE = (30, 30, 30), (130, 130, 130), (225, 225, 225), (255, 255, 255)
BLUE, ORANGE = (32, 92, 170), (215, 105, 20)


def save_picture(path: str | PathLike[str], picture: Image.Image) -> None:
    """Writes a picture as PNG, under a temporary name first.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_picture(Path(folder, "dot.png"), Image.new("RGB", (1, 1)))
        ...     [file.name for file in Path(folder).iterdir()]
        ['dot.png']
    """
    target = Path(path)
    temporary = target.with_name(f".{target.stem}.partial.png")
    try:
        picture.save(temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font, in pixels of height."""
    return ImageFont.load_default(size)


def shortened(text: str, num_characters: int) -> str:
    """A text of at most so many characters, all of which Pillow's own font has.

    Example:
        >>> shortened("a rather long name", 10)
        'a rathe...'
    """
    text = text if len(text) <= num_characters else f"{text[: num_characters - 3]}..."
    return text.encode("latin-1", "replace").decode("latin-1")


def draw_text(
    draw: ImageDraw.ImageDraw,
    place: tuple[float, float],
    text: str,
    *,
    anchor: str = "la",
    size: int = 13,
    color: tuple[int, int, int] = BLACK,
) -> None:
    """Draws one line of text; `anchor` is Pillow's: "la" left and above, "mm" the middle, "rs" right and below."""
    draw.text(place, shortened(text, 200), fill=color, font=font(size), anchor=anchor)
