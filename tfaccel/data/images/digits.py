"""scikit-learn's digits as an image set: 1,797 real images of handwritten digits that come with the library."""

import numpy as np

from tfaccel.data.images.image_set import ImageSet, ImageSplit, check_image_size, split_rows

_IMAGE_SIZE = 8
_NUM_TRAIN, _NUM_TEST = 1437, 360
_MAX_VALUE = 16  # of a pixel, which counts the ink pixels in a 4 x 4 block


def digits(image_size: int | None = None) -> ImageSet:
    """The digits 0 to 9 in 8x8 grayscale, in a stratified 80/20 split; loaded on first use.

    Args:
        image_size: height and width in pixels to resize them to; None for 8.

    Raises:
        DataError: if the size is not supported.

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998 (its test set).

    Example:
        >>> digits().num_train_images
        1437
    """
    size = _IMAGE_SIZE if image_size is None else image_size
    check_image_size(size)
    return ImageSet(
        class_names=tuple("0123456789"),
        image_size=size,
        num_channels=1,
        num_train_images=_NUM_TRAIN,
        num_test_images=_NUM_TEST,
        load=_load,
    )


def _load() -> tuple[ImageSplit, ImageSplit]:
    from sklearn.datasets import load_digits

    data = load_digits()
    images = np.round(data.images * (255 / _MAX_VALUE)).astype(np.uint8)[..., np.newaxis]
    labels = data.target.astype(np.int64)
    train, test = split_rows(labels)
    return ImageSplit(images[train], labels[train]), ImageSplit(images[test], labels[test])
