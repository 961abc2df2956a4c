"""Makes the variants of a model, each as a file."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras

from tfaccel.compressing.compress_options import CompressOptions
from tfaccel.compressing.compress_source import CompressSource, check_ranges, get_rows
from tfaccel.compressing.keras_quantize import load_quantized, quantize_in_keras, save_in_keras, save_quantized
from tfaccel.compressing.litert.conversion import ConversionChild
from tfaccel.compressing.litert.file import slim
from tfaccel.compressing.litert.post_training import Converter, Rows, check_quantizer, quantize_blocks, quantize_weights
from tfaccel.compressing.methods import BLOCKS, FLOAT32, Method, TfmotOptions, get_parts
from tfaccel.compressing.tfmot.methods import check_method, tfmot_variant
from tfaccel.compressing.variant import KERAS_SUFFIX, LITERT_SUFFIX, Variant
from tfaccel.errors import CompressionError

KERAS_FLOAT = f"keras_{FLOAT32}"
MakeMixed = Callable[[], tuple[bytes, tuple[str, ...]]]


class VariantMaker:
    """Makes the variants of one model.

    Args:
        source: the model and its data.
        folder: folder for the files.
        options: the number of representative examples, and how to train.
        make_mixed: makes the variant "mixed": the file, and the layers in float.
    """

    def __init__(
        self, source: CompressSource, folder: Path, options: CompressOptions, *, make_mixed: MakeMixed
    ) -> None:
        self.source = source
        self._folder = folder
        self._options = options
        self._make_mixed = make_mixed
        self._working = tempfile.TemporaryDirectory(prefix="tfaccel-variants-")
        self._child = ConversionChild()
        self._trained: dict[str, tuple[Any, Any]] = {}
        self.representative_text = ""

    def close(self) -> None:
        """Removes temporary files."""
        self._child.close()
        self._working.cleanup()

    def check(self, methods: Sequence[str]) -> None:
        """Checks the methods before anything is made.

        Raises:
            CompressionError: if representative data do not fit the model, or a training method has no workload.
            VersionError: if a package that a method needs is missing.
        """
        parts = [part for name in methods for part in get_parts(name) if part is not None]
        if any(part.needs_rows for part in parts):
            len(self.rows)
        if any(part.kind == "weight_only" for part in parts):
            check_quantizer()
        trained = [part.name for part in parts if part.kind == "trained"]
        for name in trained:
            check_method(name)
        if trained and self.source.workload is None:
            raise CompressionError(
                f"Fine-tuning ({', '.join(trained)}) needs a workload: its training data, loss and "
                "optimizer. Give workload=, or choose post-training methods."
            )

    @functools.cached_property
    def rows(self) -> Rows:
        """Representative examples."""
        text = self.source.representative_text
        rows = get_rows(
            self.source.representative, self.source.signature, num_rows=self._options.num_representative, what=text
        )
        check_ranges(rows, what=text)
        self.representative_text = f"{len(rows)} examples of {text}"
        return rows

    @functools.cached_property
    def converter(self) -> Converter:
        """The float model's converter."""
        return self._make_converter(self.source.model, FLOAT32)

    @functools.cached_property
    def _keras_file(self) -> Path:
        """The float model as a Keras file."""
        path = Path(self._working.name) / f"{FLOAT32}{KERAS_SUFFIX}"
        save_in_keras(self.source.model, path)
        return path

    def make_float(self, *, in_keras: bool) -> Variant:
        """The float model as a LiteRT or Keras file."""
        self._options.progress(f"{FLOAT32}: convert")
        if not in_keras:
            return self._litert(FLOAT32, self.converter.float_content)
        path = self._folder / f"{KERAS_FLOAT}{KERAS_SUFFIX}"
        shutil.copyfile(self._keras_file, path)
        return Variant(name=KERAS_FLOAT, method=FLOAT32, path=str(path))

    def make(self, name: str) -> Variant:
        """The variant of a method.

        Raises:
            CompressionError: if the method cannot be applied to the model.
        """
        method, afterwards = get_parts(name)
        self._options.progress(f"{name}: {method.text}")
        if method.kind == "keras":
            return self._in_keras(method)
        if method.kind == "mixed":
            content, kept = self._make_mixed()
            note = f"float32 kept for {', '.join(kept)}" if kept else "no layer had to be kept in float32"
            notes = tuple(filter(None, (note, self._ranges(), self.converter.mask_note(self.rows))))
            return self._litert(name, content, notes=notes, float_layers=kept)
        if method.kind == "trained":
            return self._after_training(name, method, afterwards)
        return self._after_conversion(name, method, self.converter)

    def _after_conversion(
        self, name: str, method: Method, converter: Converter, *, notes: tuple[str, ...] = ()
    ) -> Variant:
        """A post-training variant of the given model, or of a pruned or clustered one."""
        if method.name == BLOCKS:
            content, blocks = quantize_blocks(converter.float_content)
            notes += (blocks,)
        elif method.kind == "weight_only":
            content = quantize_weights(converter.float_content, num_bits=int(method.name[-1]))
        elif method.name == "int8":
            content, scales = converter.int8(self.rows)
            notes += (scales,)
        else:
            content = converter.convert(method.name, self.rows if method.needs_rows else ())
        if method.needs_rows:
            notes += tuple(filter(None, (self._ranges(), converter.mask_note(self.rows))))
        return self._litert(name, content, notes=notes)

    def _in_keras(self, method: Method) -> Variant:
        model = load_quantized(self._keras_file)
        mode = method.name.removeprefix("keras_")
        notes = quantize_in_keras(model, mode, self.rows if method.needs_rows else ())
        path = self._folder / f"{method.name}{KERAS_SUFFIX}"
        save_quantized(model, path)
        return Variant(name=method.name, method=method.name, path=str(path), notes=notes)

    def _after_training(self, name: str, method: Method, afterwards: Method | None) -> Variant:
        """A variant of a fine-tuned model: its own LiteRT file, or a Keras model that can be converted further."""
        converter, outcome = self._trained_on(method)
        if outcome.litert is not None:
            return self._litert(name, outcome.litert, notes=outcome.notes, metrics=self._imitated(outcome))
        return self._after_conversion(
            name, afterwards or Method(FLOAT32, "post_training", ""), converter, notes=outcome.notes
        )

    def _trained_on(self, method: Method) -> tuple[Any, Any]:
        """The outcome of a training method, and a converter of its model; trained only once."""
        if method.name not in self._trained:
            source, say = self.source, self._options.progress
            if source.workload is None:
                raise CompressionError(f"{method.name} needs a workload to fine-tune on.")
            outcome = tfmot_variant(
                source.model,
                method.name,
                workload=source.workload,
                signature=source.signature,
                held_out=source.held_out,
                options=TfmotOptions(**self._options.training),
                say=lambda text: say(f"{method.name}: {text}"),
            )
            converter = None if outcome.model is None else self._make_converter(outcome.model, method.name)
            self._trained[method.name] = converter, outcome
        return self._trained[method.name]

    def _imitated(self, outcome: Any) -> dict[str, float]:
        """The metrics of the fake-quantized Keras model, beside those of its LiteRT file."""
        if not outcome.predictions:
            return {}
        predictions = iter(outcome.predictions)
        metrics = self.source.task.of(lambda x: next(predictions))
        return {f"imitated_{name}": value for name, value in metrics.items()}

    def _ranges(self) -> str:
        return f"activations calibrated with {self.representative_text}"

    def _make_converter(self, model: keras.Model, name: str) -> Converter:
        folder = Path(self._working.name) / name
        folder.mkdir()
        return Converter(model, self.source.signature, folder, child=self._child)

    def _litert(self, name: str, content: bytes, **known: Any) -> Variant:
        path = self._folder / f"{name}{LITERT_SUFFIX}"
        path.write_bytes(slim(content))
        return Variant(name=name, method=name, path=str(path), **known)
