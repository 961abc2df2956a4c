"""The data of an image workload: test batches, and training batches whose images are moved or augmented at random.

`ImageMoves` change each image by itself. `ImageAugmentation` changes whole batches with Keras layers, whose random
draws depend only on seed, epoch and batch.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.data.cache import CacheOptions, Place
from tfaccel.data.epochs import Batches, Part, gathered
from tfaccel.data.images.image_check import decoded
from tfaccel.data.images.image_set import EncodedImages, ImageSet, ImageSplit
from tfaccel.data.pipeline import AUTOMATIC, Augmentation, Pipeline
from tfaccel.data.raw_input import ImageInput
from tfaccel.data.tfrecord_files import file_states
from tfaccel.errors import DataError
from tfaccel.known_names import did_you_mean
from tfaccel.short_repr import short_repr

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

_FLOAT_BYTES = 4
_RESIZED_AT_ONCE = 1024
_OF_IMAGES = ("moves", "none")  # the others augment whole batches and may mix their images

_STREAM = 3  # keeps these seeds independent of the draws that shuffle and transform the examples
_MAX_PIXEL = 255.0  # pixel values range from 0 to this during augmentation
_CROP_MARGIN = 8  # padding is the image size divided by this
_MAX_TRACED = 32

AUGMENTATIONS = ("flip", "crop", "randaugment", "mixup", "cutmix", "cutout")


@short_repr
@dataclass(frozen=True)
class ImageMoves:
    """The range of random affine transformations; each amount is drawn uniformly between its bounds.

    Args:
        rotation: the largest angle, in radians, in either direction.
        zoom: height and width are each scaled by exp(-zoom) to exp(zoom).
        shift: the largest shift as a fraction of the image size, vertically and horizontally.

    Example:
        >>> ImageMoves(shift=0.5).transforms(np.random.default_rng(0), num_images=3, image_size=8).shape
        (3, 8)
    """

    rotation: float = 0.2
    zoom: float = 0.1
    shift: float = 0.1

    @property
    def is_identity(self) -> bool:
        """Whether no image is ever changed.

        Example:
            >>> ImageMoves().is_identity, ImageMoves(rotation=0.0, zoom=0.0, shift=0.0).is_identity
            (False, True)
        """
        return not (self.rotation or self.zoom or self.shift)

    def transforms(self, generator: np.random.Generator, num_images: int, image_size: int) -> np.ndarray:
        r"""One affine transform for each image, in the form that TensorFlow's `ImageProjectiveTransformV3` expects.

        The pixel at $(x, y)$ of the transformed image is that of the image at
        $(a_0 x + a_1 y + a_2, \; b_0 x + b_1 y + b_2)$.

        Returns:
            $(a_0, a_1, a_2, b_0, b_1, b_2, 0, 0)$ for each image: float32, of shape (num_images, 8).
        """
        angle, zoom_x, zoom_y, shift_x, shift_y = generator.uniform(-1.0, 1.0, (5, num_images))
        angle, scale_x, scale_y = self.rotation * angle, np.exp(self.zoom * zoom_x), np.exp(self.zoom * zoom_y)
        a0, a1 = scale_x * np.cos(angle), -scale_x * np.sin(angle)
        b0, b1 = scale_y * np.sin(angle), scale_y * np.cos(angle)
        middle = (image_size - 1) / 2  # rotation and zoom are about the center
        a2 = middle - (a0 + a1) * middle + self.shift * shift_x * image_size
        b2 = middle - (b0 + b1) * middle + self.shift * shift_y * image_size
        zero = np.zeros(num_images)
        return np.stack([a0, a1, a2, b0, b1, b2, zero, zero], axis=1).astype(np.float32)


STILL = ImageMoves(rotation=0.0, zoom=0.0, shift=0.0)


class ImageBatches(Pipeline):
    """The batches of an image set; the transformation of each image is fixed by seed, epoch and position.

    Args:
        images: the image set. `tf.data` reads and decodes files, only once if the decoded images fit into the cache.
        moves: the range of random transformations of training images.
        cache: where decoded images are kept.

    Example:
        >>> from tfaccel.data.images.image_set import digits
        >>> images, labels = next(iter(ImageBatches(digits(), ImageMoves()).train(64, seed=0, epoch=0)))
        >>> images.shape, labels.shape
        (TensorShape([64, 8, 8, 1]), TensorShape([64, 10]))
    """

    def __init__(self, images: ImageSet, moves: ImageMoves, *, cache: CacheOptions = AUTOMATIC) -> None:
        train, test = images.load()
        augmentation = None
        if not moves.is_identity:
            draw = functools.partial(moves.transforms, image_size=images.image_size)
            augmentation = Augmentation(draw, functools.partial(_moved, size=images.image_size))
        super().__init__(
            **_pipeline_options(train, images, cache),
            augmentation=augmentation,
            test=lambda: Pipeline(**_pipeline_options(test, images, cache)),
        )


def _pipeline_options(part: ImageSplit, images: ImageSet, cache: CacheOptions) -> dict[str, Any]:
    """How a part of an image set is read: images (float32, raw pixel values), and one-hot labels."""
    import tensorflow as tf

    num_classes, own_cache = len(images.class_names), None
    if isinstance(part.images, np.ndarray):
        read = gathered((_sized(part.images, images.image_size), part.labels))
    else:
        decode, labels = decoder(part.images, images), gathered(part.labels)
        own_cache = replace(cache, identity=functools.partial(_identity, part.images, images))

        def read(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return decode(rows), labels(rows)

    return {
        "read": read,
        "num_examples": len(part.labels),
        "cache": own_cache,
        "noun": "images",
        "prepare": lambda pair: (tf.cast(pair[0], tf.float32), tf.one_hot(pair[1], num_classes)),
    }


def _moved(pair: tuple[tf.Tensor, tf.Tensor], transforms: tf.Tensor, *, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    import tensorflow as tf

    images, labels = pair
    return tf.ensure_shape(moved_images(images, transforms, size, fill_mode="NEAREST"), images.shape), labels


def moved_images(images: tf.Tensor, transforms: tf.Tensor, size: int, *, fill_mode: str) -> tf.Tensor:
    """Square images (float32) after the affine transforms of `ImageMoves.transforms`, in a graph.

    Args:
        images: of shape (num_images, size, size, channels).
        transforms: of shape (num_images, 8).
        size: height and width in pixels.
        fill_mode: what fills the places beyond an image's edge: "NEAREST" for its edge, "CONSTANT" for black.
    """
    import tensorflow as tf

    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=transforms,
        output_shape=[size, size],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode=fill_mode,
    )


def _sized(images: np.ndarray, size: int) -> np.ndarray:
    """Images resized to a height and width; uint8 stays uint8."""
    import tensorflow as tf

    if images.shape[1:3] == (size, size):
        return images
    with tf.device("/CPU:0"):
        parts = (images[start : start + _RESIZED_AT_ONCE] for start in range(0, len(images), _RESIZED_AT_ONCE))
        sized = [tf.image.resize(part, [size, size], antialias=True).numpy() for part in parts]
    pixels = np.concatenate(sized)
    return np.clip(np.round(pixels), 0, 255).astype(np.uint8) if images.dtype == np.uint8 else pixels


def _identity(images: tuple[str, ...] | EncodedImages, of: ImageSet) -> str:
    """What identifies decoded images: the files (name, size and modification time) and the shape."""
    content = images.identity() if isinstance(images, EncodedImages) else file_states(images)
    return f"{content} {of.image_size} {of.num_channels}"


def decoder(images: tuple[str, ...] | EncodedImages, of: ImageSet) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function from row numbers to decoded images: uint8, of shape (num_rows, size, size, channels).

    Args:
        images: file names, or images that are read by index.
        of: their image set, which defines size and channels.
    """
    import tensorflow as tf

    size, num_channels = of.image_size, of.num_channels
    if isinstance(images, EncodedImages):
        read_content = tf.identity

        def read(rows: np.ndarray) -> np.ndarray:
            return np.array(images.read(rows), dtype=object)

        def items(rows: tf.Tensor) -> tf.Tensor:  # the bytes of images
            return tf.ensure_shape(tf.numpy_function(read, [rows], tf.string, stateful=False), [rows.shape[0]])

    else:
        read_content = tf.io.read_file
        with tf.device("/CPU:0"):
            names = tf.constant([os.fsencode(name) for name in images])  # bytes: names need not be UTF-8

        def items(rows: tf.Tensor) -> tf.Tensor:  # the names of files
            return tf.gather(names, rows)

    def image(item: tf.Tensor) -> tf.Tensor:
        resized = tf.image.resize(decoded(read_content(item), num_channels), [size, size], antialias=True)
        return tf.ensure_shape(tf.cast(tf.round(resized), tf.uint8), [size, size, num_channels])

    return lambda rows: tf.map_fn(image, items(rows), fn_output_signature=tf.uint8)


class ImageData(Batches):
    """Batches of images (float32, raw pixel values) and one-hot labels (float32).

    Args:
        images: an `ImageSet`.
        augmentation: random augmentation of training images: slight rotation, zoom and shift ("moves"), nothing
            ("none"), or the moves followed by a batch augmentation: "flip", "crop", "randaugment", "mixup", "cutmix"
            or "cutout"; see `tfaccel.data.images.image_data`.
        moves: the range of rotation, zoom and shift.
        cache: where decoded images are kept: "memory", "disk", "none", or "auto" for the first with enough space.

    Example:
        >>> from tfaccel.data import digit_images
        >>> data = ImageData(digit_images())
        >>> images, labels = next(iter(data.train_data(64, seed=0, epoch=0)))
        >>> images.shape, labels.shape
        (TensorShape([64, 8, 8, 1]), TensorShape([64, 10]))
    """

    takes_augmented = True

    def __init__(
        self,
        images: ImageSet,
        *,
        augmentation: str = "moves",
        moves: ImageMoves = ImageMoves(),
        cache: Place = "auto",
    ) -> None:
        moved = STILL if augmentation == "none" else moves
        options = CacheOptions(place=cache)
        super().__init__(
            images,
            lambda: ImageBatches(images, moved, cache=options),
            num_train_examples=images.num_train_images,
            takes_every=True,
            raw_input=ImageInput.of(images),
        )
        self._kind = augmentation
        self.example_bytes = _FLOAT_BYTES * images.image_size**2 * images.num_channels
        self.augment = None if augmentation == "none" else self._augment
        self.augment_mixes_rows = augmentation not in _OF_IMAGES

    @functools.cached_property
    def _mixed(self) -> ImageAugmentation:
        return ImageAugmentation(self._kind, self.source)

    def get_batches(self, part: Part) -> Any:
        """The batches of a part of the training data."""
        if not self.augment_mixes_rows:
            return self.made().get_batches(part)
        # The images of a batch are mixed with each other, so the whole batch is needed before it is sharded.
        whole = replace(part, shard=None)
        batches = self._mixed.apply(self.made().get_batches(whole), whole)
        return part.own_rows(batches) if part.augmented else batches

    def _augment(self, batch: tuple[Any, Any]) -> Any:
        moved: tuple[tf.Tensor, tf.Tensor] = self.made().augment(batch[0] if self.augment_mixes_rows else batch)
        return self._mixed.augment(*moved, batch[1]) if self.augment_mixes_rows else moved


def _layers(name: str, size: int) -> list[keras.layers.Layer]:
    """The layers of an augmentation for images of this height and width."""
    from keras import layers

    of_name: dict[str, Callable[..., list[keras.layers.Layer]]] = {
        "flip": lambda **dtype: [layers.RandomFlip("horizontal", **dtype)],
        "crop": lambda **dtype: [
            layers.ZeroPadding2D(max(1, size // _CROP_MARGIN), **dtype),
            layers.RandomCrop(size, size, **dtype),
        ],
        "randaugment": lambda **dtype: [layers.RandAugment((0, _MAX_PIXEL), num_ops=2, factor=0.3, **dtype)],
        "mixup": lambda **dtype: [layers.MixUp(alpha=0.2, **dtype)],
        "cutmix": lambda **dtype: [layers.CutMix(factor=1.0, **dtype)],
        "cutout": lambda **dtype: [
            layers.RandomErasing(1.0, (0.02, 0.2), _MAX_PIXEL / 2, value_range=(0, _MAX_PIXEL), **dtype)
        ],
    }
    return of_name[name](dtype="float32")  # whatever the model's dtype policy


def _batch_seeds() -> Any:
    """Gives layers the seeds of one batch, instead of a counter that depends on earlier draws."""
    import keras
    import tensorflow as tf

    class BatchSeeds(keras.random.SeedGenerator):
        def __init__(self) -> None:
            super().__init__(seed=0)
            self._of_batch: tf.Tensor | None = None
            self._num_drawn = 0

        def begin(self, seed: tf.Tensor) -> None:
            """Starts a batch; `seed` is int32, of shape (2,)."""
            self._of_batch, self._num_drawn = seed, 0

        def next(self, ordered: bool = True) -> tf.Tensor:
            """The next seed, of shape (2,)."""
            del ordered
            self._num_drawn += 1
            return tf.convert_to_tensor(self._of_batch) + tf.constant([0, self._num_drawn], tf.int32)

    return BatchSeeds()


class ImageAugmentation:
    """A named augmentation of batches of images and one-hot labels. Instances with equal settings are equal.

    "flip" flips images horizontally, "crop" shifts whole batches by up to an eighth, "randaugment" applies two of ten
    operations, "mixup" blends each image (and its label) with another one, "cutmix" pastes a patch of another image
    into it, and "cutout" erases a patch.

    Args:
        name: one of `AUGMENTATIONS`.
        images: the set that the batches are drawn from.

    Raises:
        DataError: if the name is unknown; the message suggests the closest one.

    Example:
        >>> import tensorflow as tf
        >>> from tfaccel.data.images.image_set import digits
        >>> batches = tf.data.Dataset.from_tensors((tf.zeros([4, 8, 8, 1]), tf.eye(4, 10)))
        >>> augmented = ImageAugmentation("mixup", digits()).apply(batches, Part(global_batch_size=4, seed=0, epoch=0))
        >>> [part.shape for part in next(iter(augmented))]
        [TensorShape([4, 8, 8, 1]), TensorShape([4, 10])]
    """

    def __init__(self, name: str, images: ImageSet) -> None:
        import keras

        if name not in AUGMENTATIONS:
            hint = did_you_mean(name, AUGMENTATIONS) or f" Augmentations: {', '.join(AUGMENTATIONS)}."
            raise DataError(f"There is no augmentation {name!r}.{hint}")
        self._kind = name, images.image_size, images.pixel_mean, images.pixel_scale, keras.config.dtype_policy().name
        self._low = images.pixel_mean - 2 * images.pixel_scale
        self._scale = 4 * images.pixel_scale / _MAX_PIXEL
        self._seeds = _batch_seeds()
        self._layers = _layers(name, images.image_size)
        for layer in self._layers:
            if hasattr(layer, "generator"):
                layer.generator = self._seeds

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ImageAugmentation) and self._kind == other._kind

    def __hash__(self) -> int:
        return hash(self._kind)

    def apply(self, batches: tf.data.Dataset, part: Part) -> tf.data.Dataset:
        """The augmented batches of an epoch; deterministic in seed, epoch and batches.

        Args:
            batches: a finite dataset of full batches of images (float32, raw pixel values) and one-hot labels.
            part: which batches these are. With `augmented=False`, each batch (of any structure) is only paired with its
                seed, for `augment`.
        """
        import tensorflow as tf

        steps = part.steps(int(batches.cardinality()))
        seeds = part.generator(_STREAM).integers(0, 2**31 - 1, (steps.stop, 2), np.int32)[steps]
        pairs = tf.data.Dataset.zip((batches, tf.data.Dataset.from_tensor_slices(seeds)))
        if not part.augmented:
            return pairs
        spec = batches.element_spec
        traced = _traced(self, tuple(spec[0].shape), tuple(spec[1].shape))
        augment = tf.autograph.experimental.do_not_convert(lambda batch, seed: traced(*batch, seed))
        return pairs.map(augment)

    def augment(self, images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Augments one whole batch with the draws of its seed. It can be traced.

        Args:
            images, labels: all rows of the batch, since the draws for a row depend on the number of rows.
            seed: int32, of shape (2,), as `apply(..., augmented=False)` yields it with the batch.
        """
        import tensorflow as tf

        self._seeds.begin(seed)
        data = {"images": (images - self._low) / self._scale, "labels": labels}
        for layer in self._layers:
            if hasattr(layer, "get_random_transformation"):
                data = layer(data, training=True)
            else:
                data["images"] = layer(data["images"])
        augmented = tf.cast(data["images"], tf.float32) * self._scale + self._low
        mixed = tf.cast(data["labels"], tf.float32)
        return tf.ensure_shape(augmented, images.shape), tf.ensure_shape(mixed, labels.shape)


@functools.lru_cache(maxsize=_MAX_TRACED)
def _traced(augmentation: ImageAugmentation, images: tuple[int, ...], labels: tuple[int, ...]) -> Callable[..., Any]:
    """The function for batches of these shapes: traced once, rather than in every epoch or trial."""
    import tensorflow as tf

    specs = tf.TensorSpec(images, tf.float32), tf.TensorSpec(labels, tf.float32), tf.TensorSpec([2], tf.int32)
    return tf.function(augmentation.augment, autograph=False).get_concrete_function(*specs)
