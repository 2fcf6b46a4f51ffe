"""What an adapter does to a model: which matrices it adds to, and which tensors it replaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from txl_export.checkpoints.adapters._complete import check_clusters, check_complete, kind_of
from txl_export.checkpoints.adapters._contents import Contents, read_contents, weights_path
from txl_export.checkpoints.adapters._record import CONFIG_FILE, Adapter
from txl_export.checkpoints.adapters._settings import Settings, read_settings
from txl_export.checkpoints.adapters._sites import places
from txl_export.checkpoints.adapters.updates import Update
from txl_export.checkpoints.base import Checkpoint
from txl_export.checkpoints.pickles import shown
from txl_export.checkpoints.upstream import Place
from txl_export.errors import CheckpointError
from txl_export.files import sha256
from txl_export.weights import count_parameters


@dataclass(frozen=True)
class Change:
    """An adapter, in terms of the tensors of the model with nothing shared (`_sites.untied_config`).

    Attributes:
        updates: what is added, by matrix.
        biases: the bias that an update's own is added to, by matrix.
        whole: tensors that take the place of the model's.
        record: what is remembered.
    """

    updates: Mapping[str, Update]
    biases: Mapping[str, str]
    whole: Mapping[str, np.ndarray]
    record: Adapter


def read_change(checkpoint: Checkpoint, folder: Path) -> Change:
    """Read an adapter for a model.

    Args:
        checkpoint: the model.
        folder: what PEFT's `save_pretrained` wrote.

    Raises:
        CheckpointError: it is no LoRA adapter, cannot be merged, is damaged, or was trained on another model.
    """
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        raise CheckpointError(f"{folder} {found}: give the folder that PEFT saved an adapter in")
    known = places(checkpoint.config)
    settings = read_settings(folder, most_patterns=len(known))
    file = weights_path(folder)
    contents = read_contents(file, 4 * count_parameters(checkpoint.config))
    check_complete(contents, settings, known, file)
    check_clusters(contents, checkpoint, file)
    reader = _Reader(file, settings, known)
    updates, biases = reader.updates(contents)
    names = sorted(contents.modules)
    record = Adapter(
        path=folder,
        kind="DoRA" if settings.dora else "LoRA",
        ranks=tuple(sorted({settings.rank_of(m) for m in names})),
        alphas=tuple(sorted({settings.alpha_of(m) for m in names})),
        modules=tuple(names),
        replaced=tuple(sorted(contents.whole)),
        sha256=sha256(file),
        config_sha256=sha256(folder / CONFIG_FILE),
    )
    return Change(updates, biases, reader.whole(contents), record)


@dataclass(frozen=True)
class _Reader:
    """Turns tensors into changes, and refuses what does not fit."""

    file: Path
    settings: Settings
    known: Mapping[str, Place]

    def whole(self, contents: Contents) -> dict[str, np.ndarray]:
        """Tensors that replace the model's, canonical; shared names first (`places`)."""
        for name, tensor in contents.whole.items():
            place = self.known.get(name)
            if place is None:
                raise CheckpointError(f"{self.file} holds {shown(name)}, which this model lacks: {self._advice()}")
            self._check_shape(name, tensor, place.shape, ": the adapter was trained on another model")
        chosen = ((place, contents.whole[name]) for name, place in self.known.items() if name in contents.whole)
        return {site: np.ascontiguousarray(tensor[rows]) for place, tensor in chosen for site, rows in place.parts}

    def updates(self, contents: Contents) -> tuple[dict[str, Update], dict[str, str]]:
        """What is added to which matrices, and the biases of these."""
        updates: dict[str, Update] = {}
        biases: dict[str, str] = {}
        for module, tensors in contents.modules.items():
            place, kind = self._place(module)
            update = self._update(module, tensors, place, kind)
            if kind == "unused":
                self._check_without_effect(module, update)
                continue
            if place.first in updates:
                raise CheckpointError(f"{self.file} adapts {shown(module)} twice, under two names: give one")
            updates |= {site: update.of_rows(rows) for site, rows in place.parts}
            if update.bias is not None:
                biases[place.first] = self._bias(module)
        return updates, biases

    def _place(self, module: str) -> tuple[Place, str]:
        name = f"{module}.weight"
        kind = kind_of(name)
        if name not in self.known:
            raise CheckpointError(f"{self.file} adapts {shown(module)}, which this model lacks: {self._advice()}")
        if kind is None:
            raise CheckpointError(f"{self.file} adapts {module}, expected a linear module or an embedding")
        return self.known[name], kind

    def _update(self, module: str, tensors: Mapping[str, np.ndarray], place: Place, kind: str) -> Update:
        embeds = kind == "embedding"
        roles = ("lora_embedding_A", "lora_embedding_B") if embeds else ("lora_A", "lora_B")
        more = {"lora_magnitude_vector": self.settings.dora, "lora_B.bias": self.settings.lora_bias and not embeds}
        self._check_roles(module, tensors, [*roles, *(role for role, there in more.items() if there)])
        (rows, columns), r = place.shape, self.settings.rank_of(module)
        # An embedding's A reads tokens, which are rows of its table, where a linear module's reads columns.
        shapes = [(r, rows), (columns, r)] if embeds else [(r, columns), (rows, r)]
        expected: dict[str, tuple[int, ...]] = dict(zip(roles, shapes, strict=True))
        expected |= {"lora_magnitude_vector": (columns if embeds else rows,), "lora_B.bias": (rows,)}
        for role, tensor in tensors.items():
            advice = f" for rank {r}: it is of another model, or {CONFIG_FILE} is of another adapter"
            self._check_shape(f"{module}.{role}", tensor, expected[role], advice)
        a, b = (tensors[role] for role in roles)
        magnitude, bias = tensors.get("lora_magnitude_vector"), tensors.get("lora_B.bias")
        up, down = (a.T, b.T) if embeds else (b, a)
        return Update(up, down, self.settings.scale(module), magnitude, embeds, bias)

    def _check_roles(self, module: str, tensors: Mapping[str, np.ndarray], expected: list[str]) -> None:
        """The configuration says which tensors a module has; raises CheckpointError for others."""
        for role in expected:
            if role not in tensors:
                raise CheckpointError(f"{self.file} lacks {role} of {shown(module)}: the file is incomplete")
        for role in tensors:
            if role not in expected:
                raise CheckpointError(
                    f"{self.file} holds {role} of {module}, expected {', '.join(expected)} by {CONFIG_FILE}: "
                    "the two are not of one adapter"
                )

    def _check_shape(self, name: str, tensor: np.ndarray, shape: tuple[int, ...], advice: str) -> None:
        if tensor.shape != shape:
            found = list(tensor.shape)
            raise CheckpointError(f"{self.file}: {shown(name)} is {found}, expected {list(shape)}{advice}")

    def _check_without_effect(self, module: str, update: Update) -> None:
        """Upstream's softmax reads this matrix and never runs the module: unmerged, an adapter on it does nothing."""
        if (update.up.any() and update.down.any()) or update.magnitude is not None or update.bias is not None:
            raise CheckpointError(
                f"{self.file} adapts {module}, whose weights the softmax reads without running the module: unmerged, "
                "the adapter has no effect there; expected modules other than crit's, or crit in modules_to_save"
            )

    def _bias(self, module: str) -> str:
        place = self.known.get(f"{module}.bias")
        if place is None:
            raise CheckpointError(f"{self.file} has lora_B.bias of {module}, which has no bias to merge it into")
        if self.settings.dora:
            raise CheckpointError(f"{self.file} has lora_bias with use_dora, on which PEFT's own code disagrees")
        return place.first

    def _advice(self) -> str:
        """An example says more than a rule."""
        nets = [n.removesuffix(".weight") for n in self.known if n.endswith("layers.0.dec_attn.qkv_net.weight")]
        return f"expected names such as {' or '.join(dict.fromkeys(nets))}; give the model that it was trained on"
