"""One optimizer step: the frozen target's states, the head's drafts, the loss, the update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specstudy.catalog.assets import Say
from specstudy.drafts.head import CHUNK, Batch, MaskedPlaces, States, depth_states, frozen_rows_loss, loss_step, output_rows, trainable
from specstudy.drafts.recipe import Recipe

CLIP = 1.0
WARM_UP_STEPS = 3


def precision(device: torch.device) -> Any:
    """bfloat16 on a GPU, float32 elsewhere."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def target_states(target: Any, batch: Batch, layers: Sequence[int], model: Callable[..., Any] | None = None) -> States:
    """Run the frozen target over packed rows, each document seeing itself alone.

    Layer i stands for what enters layer i, as vLLM counts auxiliary layers. model: target.model, or that compiled.
    """
    with torch.no_grad():
        seen = (model or target.model)(
            input_ids=batch.ids,
            position_ids=batch.positions,
            attention_mask=batch.row_mask()[:, None] | torch.eye(batch.ids.shape[1], dtype=torch.bool, device=batch.ids.device),
            output_hidden_states=True,
            use_cache=False,
        )
    return States(torch.cat([seen.hidden_states[layer] for layer in layers], dim=-1), seen.last_hidden_state)


def kept_anchors(recipe: Recipe, anchors: int) -> list[int]:
    """peagle: anchors that each depth keeps (COD, ratio and floor of the recipe)."""
    return [anchors] + [max(1, round(anchors * max(recipe.drop_ratio**depth, recipe.drop_floor))) for depth in range(1, recipe.depth)]


def batch_loss(
    head: Any,
    batch: Batch,
    states: States,
    recipe: Recipe,
    rows: Tensor,
    masked: MaskedPlaces | None,
    step: Callable[..., Any],
    drafted: Callable[..., list[Tensor]] = depth_states,
) -> Tensor:
    """Mean loss over anchors and depths, weighted by depth_weight to the power of the depth. step, drafted: loss_step and depth_states, or these compiled."""
    found, finals, weights = [], [], []
    for depth, state in enumerate(drafted(head, batch, states.aux, masked)):
        at, there = batch.label_at(depth)
        at, there = at[:, : state.shape[1]], there[:, : state.shape[1]]
        found.append(state.flatten(0, 1))
        finals.append(states.final.gather(1, at[..., None].expand(-1, -1, states.final.shape[-1])).flatten(0, 1))
        weights.append(there.flatten() * recipe.depth_weight**depth)
    weight = torch.cat(weights)
    weight = weight / weight.sum().clamp(min=1e-6)
    short = -len(weight) % CHUNK if weight.is_cuda else 0  # chunks of one size: compiled once
    padded = [torch.cat([values, values.new_zeros(short, *values.shape[1:])]) for values in (torch.cat(found), torch.cat(finals), weight)]
    loss, _ = frozen_rows_loss(padded[0].to(rows.dtype), rows, padded[1].to(rows.dtype), padded[2], recipe.hard_share, step)
    return loss


@dataclass
class _Recording:
    """Of one shape: the batch whose memory the graph reads, the steps that are still taken before recording, the graph and its loss."""

    batch: Batch
    warm_up: int = WARM_UP_STEPS
    graph: torch.cuda.CUDAGraph | None = None
    loss: Tensor | None = None


class Stepper:
    """Takes steps. On a GPU a step is compiled, recorded as a CUDA graph once for each shape of batch, and replayed.

    A step is thousands of small kernels that mostly move data: compiling joins them, and a graph launches them at once. Measured
    on one H200 with the eagle3 recipe: 106 ms a step as it is, 92 ms as a graph, 67 ms compiled and as a graph. Where compiling
    or recording fails, steps are taken without.
    """

    def __init__(self, head: Any, target: Any, recipe: Recipe, say: Say) -> None:
        self._head, self._target, self._recipe, self._say = head, target, recipe, say
        self._parameters = trainable(head)
        self._device = next(target.parameters()).device
        on_gpu = self._device.type == "cuda"
        if on_gpu and recipe.method == "peagle":
            torch.backends.cuda.enable_cudnn_sdp(False)  # torch's own kernel learns under a mask on each host, whatever cuDNN it has
        self._rate: Tensor | float = torch.tensor(recipe.learning_rate, device=self._device) if on_gpu else recipe.learning_rate
        self.optimizer = torch.optim.AdamW(
            self._parameters, lr=self._rate, betas=(0.9, 0.95), weight_decay=recipe.weight_decay, fused=on_gpu, capturable=on_gpu
        )
        self._rows = output_rows(head).to(torch.bfloat16 if on_gpu else torch.float32)
        self._loss_step: Callable[..., Any] = torch.compile(loss_step) if on_gpu else loss_step
        self._drafted: Callable[..., list[Tensor]] = torch.compile(depth_states, dynamic=False) if on_gpu else depth_states
        self._model: Callable[..., Any] = torch.compile(target.model.forward, dynamic=False) if on_gpu else target.model
        self._masked: dict[int, MaskedPlaces] = {}
        self._recordings: dict[tuple[int, ...], _Recording] = {}

    def step(self, batch: Batch, rate: float) -> Tensor:
        """Learn from a batch at a learning rate; the batch's loss, which may not be there yet on a GPU."""
        self._set_rate(rate)
        if self._device.type != "cuda":
            return self._work(batch)
        shape = (*batch.ids.shape, batch.anchors.shape[1])
        if shape not in self._recordings:
            self._recordings[shape] = _Recording(batch.to(self._device))
        mine = self._recordings[shape]
        mine.batch.fill(batch)
        if mine.warm_up > 0:
            mine.warm_up -= 1
            return self._first(mine.batch)
        if mine.warm_up == 0:
            mine.warm_up = -1
            self._record(mine)
        if mine.graph is None or mine.loss is None:
            return self._work(mine.batch)
        mine.graph.replay()
        return mine.loss.clone()

    def _set_rate(self, rate: float) -> None:
        if isinstance(self._rate, Tensor):
            self._rate.fill_(rate)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate if isinstance(self._rate, Tensor) else rate

    def _work(self, batch: Batch) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        with precision(self._device):
            states = target_states(self._target, batch, self._head.target_layer_ids, self._model)
            loss = batch_loss(self._head, batch, states, self._recipe, self._rows, self._masked_places(batch), self._loss_step, self._drafted)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._parameters, CLIP)
        self.optimizer.step()
        return loss.detach()

    def _masked_places(self, batch: Batch) -> MaskedPlaces | None:
        """Made once for each number of anchors: constants of the compiled step, and of the graph."""
        if self._recipe.method != "peagle":
            return None
        anchors = batch.anchors.shape[1]
        if anchors not in self._masked:
            self._masked[anchors] = MaskedPlaces.of(kept_anchors(self._recipe, anchors), self._device)
        return self._masked[anchors]

    def _first(self, batch: Batch) -> Tensor:
        """A step that compiles; what can't be compiled runs as it is."""
        while True:
            try:
                return self._aside(batch)
            except (RuntimeError, ValueError) as error:  # torch's compiler raises both
                if self._drafted is not depth_states:
                    part, self._drafted = "the head", depth_states
                elif self._model is not self._target.model:
                    part, self._model = "the target", self._target.model
                else:
                    raise
                self._say(f"{part} can't be compiled, so it runs as it is ({str(error).splitlines()[0]})")

    def _aside(self, batch: Batch) -> Tensor:
        """A step on a stream of its own, as recording wants it."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            loss = self._work(batch)
        torch.cuda.current_stream().wait_stream(stream)
        return loss

    def _record(self, mine: _Recording) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                mine.loss = self._work(mine.batch)
        except RuntimeError as error:
            torch.cuda.synchronize()
            self._say(f"a step can't be recorded as a CUDA graph, so each kernel is launched by itself ({str(error).splitlines()[0]})")
            return
        mine.graph = graph
