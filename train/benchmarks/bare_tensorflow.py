"""A training step of Transformer-XL in bare TensorFlow, without Keras.

A baseline for the training step of this library. It has the same mathematics,
loss, clipping, Adam and memory, but uses variables and functions only. Its
attention is one of

- `attend_by_kernels`: calls the functions that the layers call, so the
  difference in time is the cost of layers, model, optimizer and trainer;
- `attend_by_definition`: the textbook, as a plain rewrite of the paper would
  be. It concatenates memory and segment and needs two einsums for the scores,
  a pad and two reshapes for the shift, a mask and a softmax. TensorFlow
  derives the gradient.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads, `H`
head size, `D` hidden size, `V` vocabulary, `L` layers.
"""

import tensorflow as tf

from txl_keras.layers.compute import blocks
from txl_keras.layers.compute.problem import Positions
from txl_keras.layers.compute.problem import Problem
from txl_keras.layers.compute.problem import Visible
from txl_keras.layers.sublayers import normalized_sum
from txl_keras.models import TransformerXLBackbone
from txl_keras.training.compilation import compile_layers

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-9


def unsupported_parts(model):
    """Names the parts of a model that are not implemented here; "" if none."""
    backbone = model.backbone
    if not isinstance(backbone, TransformerXLBackbone):
        return "an LSTM"
    embedding = backbone.token_embedding
    parts = {
        "cutoffs": embedding.cutoffs,
        "embedding_dim": embedding.needs_projection(0),
        "tie_embeddings=False": not model.softmax.tie_embeddings,
        "tie_attention_biases=False": not backbone.tie_attention_biases,
        f"attention_type={backbone.attention_type}": (
            backbone.attention_type != "relative"
        ),
        "same_length": backbone.same_length,
        "normalize_first": backbone.normalize_first,
        "normalize_output": backbone.normalize_output,
        "cold_start=zeros": backbone.cold_start != "masked",
        "dropout": backbone.dropout or backbone.attention_dropout,
    }
    return ", ".join(name for name, is_used in parts.items() if is_used)


class BareTensorFlow:
    """Runs training steps on its own copy of a model's weights."""

    # Without a `learning_rate` it can only score. `weights` maps names such as
    # `"block_0/attention/key/kernel"` to variables, in the order of
    # `model.trainable_variables`.

    def __init__(
        self, model, batch_size, attention, learning_rate=None, clip_norm=0.25
    ):
        unsupported = unsupported_parts(model)
        if unsupported:
            raise ValueError(
                "`model` must have only parts that the bare TensorFlow "
                "baseline implements: one embedding table, relative attention "
                f"and no dropout. Received: a model with {unsupported}"
            )
        backbone = model.backbone
        self.dtype = tf.as_dtype(backbone.compute_dtype)
        self.clamp_length = backbone.clamp_length
        self.layer_norm_epsilon = backbone.layer_norm_epsilon
        self.learning_rate = learning_rate
        self.clip_norm = clip_norm
        self.attend = attention
        self.weights = {
            weight.path.split("/", 1)[1]: tf.Variable(weight)
            for weight in model.trainable_variables
        }
        self._moments = [
            tuple(tf.Variable(tf.zeros_like(weight)) for _ in range(2))
            for weight in self.weights.values()
            if learning_rate is not None
        ]
        self._step = tf.Variable(0, dtype=tf.int64)
        shape = batch_size, backbone.memory_length, backbone.hidden_dim
        self.memory = [
            tf.Variable(tf.zeros(shape, self.dtype))
            for _ in range(backbone.num_layers)
        ]
        self.valid_length = tf.Variable(tf.zeros(batch_size, tf.int32))
        self._run = tf.function(self._train, reduce_retracing=True)
        self._compiled_gradients = self.loss_and_gradients
        self._compiled_step = self.step
        if attention is attend_by_kernels:
            self._compiled_gradients = compile_layers(
                self.loss_and_gradients,
                tf.distribute.get_strategy(),
                model,
                training=True,
            )
        else:
            self._compiled_step = tf.function(self.step, jit_compile=True)
        self._compiled_update = tf.function(self._update, jit_compile=True)

    def train(self, iterator, num_steps):
        """Runs steps in one host call; returns their losses as an array."""
        return self._run(iterator, tf.constant(num_steps)).numpy()

    def _train(self, iterator, num_steps):
        losses = tf.TensorArray(tf.float32, num_steps, element_shape=())
        for i in tf.range(num_steps):
            losses = losses.write(i, self._compiled_step(next(iterator)))
        return losses.stack()

    def step(self, batch):
        """Runs one step; returns its loss in nats per target."""
        loss, gradients = self._compiled_gradients(batch)
        self._compiled_update(gradients)
        return loss

    def _update(self, gradients):
        gradients, _ = tf.clip_by_global_norm(gradients, self.clip_norm)
        self._step.assign_add(1)
        step = tf.cast(self._step, tf.float32)
        rate = self.learning_rate * tf.sqrt(1 - tf.pow(_BETA_2, step))
        rate /= 1 - tf.pow(_BETA_1, step)
        for weight, (first, second), gradient in zip(
            self.weights.values(), self._moments, gradients, strict=True
        ):
            first.assign_add((gradient - first) * (1 - _BETA_1))
            second.assign_add((tf.square(gradient) - second) * (1 - _BETA_2))
            weight.assign_sub(rate * first / (tf.sqrt(second) + _EPSILON))

    def loss_and_gradients(self, batch):
        """Returns nats per target and gradients; appends to the memory."""
        weights = list(self.weights.values())
        with tf.GradientTape() as tape:
            nll = self.score(batch["inputs"], batch["targets"], batch["reset"])
            loss = tf.reduce_sum(nll * batch["weights"] / batch["num_targets"])
        gradients = tape.gradient(loss, weights)
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def score(self, inputs, targets, reset):
        """Computes nats per target, `(B, T)`; first clears rows of `reset`."""
        valid_length = tf.where(reset, 0, self.valid_length)
        hidden, states = self._hidden_states(inputs, valid_length)
        self._remember(states, valid_length)
        return self._nll(hidden, targets)

    def _remember(self, states, valid_length):
        length = self.memory[0].shape[1]
        for memory, state in zip(self.memory, states, strict=True):
            together = tf.concat([memory, tf.stop_gradient(state)], axis=1)
            memory.assign(together[:, together.shape[1] - length :])
        num_valid = tf.minimum(valid_length + states[0].shape[1], length)
        self.valid_length.assign(num_valid)

    def _hidden_states(self, inputs, valid_length):
        """Returns the last output `(B, T, D)` and the inputs of all blocks."""
        table = self.weights["token_embedding/embeddings_0"]
        x = tf.cast(tf.gather(table, inputs), self.dtype)
        x *= tf.constant(table.shape[1] ** 0.5, x.dtype)
        num_memory = self.memory[0].shape[1]
        places = tf.range(num_memory)
        memory_mask = places >= num_memory - valid_length[:, None]  # [B, M]
        encoding = tf.cast(
            sinusoids(num_memory + x.shape[1], x.shape[2], self.clamp_length),
            self.dtype,
        )
        states = []
        for layer, memory in enumerate(self.memory):
            states.append(x)
            x = self._block(layer, x, memory, memory_mask, encoding)
        return x, states

    def _block(self, layer, x, memory, memory_mask, encoding):
        name = f"block_{layer}"
        attended = self.attend(
            x,
            tf.identity(memory),
            memory_mask,
            encoding,
            self.attention_weights(layer),
        )
        x = self._normalize(f"{name}/attention_norm", x, attended)
        inner = tf.nn.relu(self._dense(f"{name}/feed_forward_intermediate", x))
        outer = self._dense(f"{name}/feed_forward_output", inner)
        return self._normalize(f"{name}/feed_forward_norm", x, outer)

    def attention_weights(self, layer):
        """Returns the attention weights of a block in the compute dtype."""
        names = {
            name: f"block_{layer}/attention/{name}/kernel"
            for name in ("query", "key", "value", "position", "output")
        }
        names["u"] = "content_attention_bias"
        names["v"] = "positional_attention_bias"
        return {short: self._cast(name) for short, name in names.items()}

    def _cast(self, name):
        return tf.cast(self.weights[name], self.dtype)

    def _dense(self, name, x):
        kernel = self._cast(f"{name}/kernel")
        return tf.tensordot(x, kernel, axes=1) + self._cast(f"{name}/bias")

    def _normalize(self, name, x, residual):
        """Computes the layer norm of a sum."""
        gamma, beta = (
            tf.identity(self.weights[f"{name}/{k}"]) for k in ("gamma", "beta")
        )
        if self.attend is attend_by_kernels:
            return normalized_sum(
                x, residual, gamma, beta, self.layer_norm_epsilon
            )
        x = tf.cast(x + residual, tf.float32)
        mean, variance = tf.nn.moments(x, axes=-1, keepdims=True)
        x = (x - mean) * tf.math.rsqrt(variance + self.layer_norm_epsilon)
        return tf.cast(x * gamma + beta, self.dtype)

    def _nll(self, hidden, targets):
        table = self.weights["token_embedding/embeddings_0"]
        flat = tf.reshape(tf.cast(hidden, tf.float32), (-1, table.shape[1]))
        logits = tf.matmul(flat, table, transpose_b=True)
        nll = tf.nn.sparse_softmax_cross_entropy_with_logits(
            tf.reshape(targets, (-1,)), logits + self.weights["softmax/bias_0"]
        )
        return tf.reshape(nll, targets.shape)


def sinusoids(num_keys, hidden_dim, clamp_length=None):
    """Returns encodings of the distances `S - 1` to 0: float32 `(S, D)`."""
    distance = tf.cast(tf.range(num_keys - 1, -1, -1), tf.float32)
    if clamp_length is not None:
        distance = tf.minimum(distance, float(clamp_length))
    exponent = tf.range(0, hidden_dim, 2, dtype=tf.float32) / hidden_dim
    angle = distance[:, None] * tf.pow(10000.0, -exponent)
    return tf.concat([tf.sin(angle), tf.cos(angle)], axis=-1)


def attend_by_definition(x, memory, memory_mask, encoding, weights):
    """Computes attention as in section 3.3 and appendix B of Dai et al., 2019.

    Shapes: `x` `(B, T, D)`, `memory` `(B, M, D)`, `memory_mask` `(B, M)`,
    `encoding` `(S, D)`; kernels `(D, N, H)`, `output` `(N, H, D)`, biases
    `(N, H)`. Returns `(B, T, D)`.
    """
    num_memory, length = memory.shape[1], x.shape[1]
    together = tf.concat([memory, x], axis=1)  # [B, S, D]
    query = tf.einsum("btd,dnh->btnh", x, weights["query"])
    key = tf.einsum("bsd,dnh->bsnh", together, weights["key"])
    value = tf.einsum("bsd,dnh->bsnh", together, weights["value"])
    position = tf.einsum("rd,dnh->rnh", encoding, weights["position"])
    content = tf.einsum("btnh,bsnh->bnts", query + weights["u"], key)
    by_distance = tf.einsum("btnh,rnh->bntr", query + weights["v"], position)
    scale = tf.constant(query.shape[-1] ** -0.5, x.dtype)
    scores = (content + _shift(by_distance)) * scale  # [B, N, T, S]
    distance = num_memory + tf.range(length)[:, None]
    is_past = tf.range(num_memory + length) <= distance
    known = tf.concat([memory_mask, tf.ones(x.shape[:2], tf.bool)], axis=1)
    mask = is_past & known[:, None, None]
    scores = tf.where(mask, tf.cast(scores, tf.float32), -1e30)
    probabilities = tf.cast(tf.nn.softmax(scores), x.dtype)
    attended = tf.einsum("bnts,bsnh->btnh", probabilities, value)
    return tf.einsum("btnh,nhd->btd", attended, weights["output"])


def _shift(scores):
    """Reorders scores `(B, N, T, S)` from distances to keys (appendix B)."""
    batch, heads, length, num_keys = scores.shape
    padded = tf.pad(scores, [[0, 0], [0, 0], [0, 0], [1, 0]])
    reshaped = tf.reshape(padded, (batch, heads, num_keys + 1, length))
    return tf.reshape(reshaped[:, :, 1:], scores.shape)


def attend_by_kernels(x, memory, memory_mask, encoding, weights):
    """Computes `attend_by_definition` with the functions of the layers."""
    known = tf.concat([memory_mask, tf.ones(x.shape[:2], tf.bool)], axis=1)
    query, *segment = _project(x, weights, "query", "key", "value")
    scale = tf.constant(query.shape[-1] ** -0.5, x.dtype)
    position = tf.tensordot(encoding, weights["position"], 1)
    problem = Problem(
        query=query * scale,
        parts=[_project(memory, weights, "key", "value"), segment],
        visible=Visible(memory.shape[1], x.shape[1], key_mask=known),
        content_bias=weights["u"] * scale,
        positions=Positions(
            (tf.transpose(position, (1, 0, 2)),), weights["v"] * scale
        ),
    )
    return tf.tensordot(blocks.attend(problem), weights["output"], 2)


def _project(states, weights, *names):
    """Projects `(B, S, D)` by several kernels in one matmul: `(N, B, S, H)`."""
    kernel = tf.concat([weights[name] for name in names], axis=1)
    projected = tf.tensordot(states, kernel, 1)
    return tf.split(tf.transpose(projected, (2, 0, 1, 3)), len(names))
