#!/usr/bin/env python3
"""Writes a GGUF file of a hybrid model (qwen3next: Gated DeltaNet and attention, experts) with random Q8_0 weights.

    bench/hybrid_gguf.py WORDS.gguf OUT.gguf

The vocabulary and the chat format are those of WORDS.gguf. The model says nothing sensible, but costs what a trained one
of its shape costs: 6 recurrent layers and 2 of attention, 152 MB. Its answers are plain ASCII, so that every token is
text. Needs numpy and gguf (`pip install gguf`).
"""

import re
import sys

import gguf
import numpy as np

HIDDEN, LAYERS, INTERVAL = 768, 8, 4
HEADS, KV_HEADS, HEAD_DIM = 4, 1, 256
KEY_HEADS, VALUE_HEADS, DELTA_DIM, TAPS = 4, 8, 128, 4
EXPERTS, EXPERTS_USED, EXPERT_WIDTH = 32, 4, 128
KEY_WIDTH, VALUE_WIDTH = KEY_HEADS * DELTA_DIM, VALUE_HEADS * DELTA_DIM


def layer_matrices(recurrent):
    """Name and shape, rows of inputs last."""
    if recurrent:
        yield "attn_qkv", (2 * KEY_WIDTH + VALUE_WIDTH, HIDDEN)
        yield "attn_gate", (VALUE_WIDTH, HIDDEN)
        yield "ssm_ba", (2 * VALUE_HEADS, HIDDEN)
        yield "ssm_out", (HIDDEN, VALUE_WIDTH)
    else:
        yield "attn_q", (2 * HEADS * HEAD_DIM, HIDDEN)  # queries and gates
        yield "attn_k", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield "attn_v", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield "attn_output", (HIDDEN, HEADS * HEAD_DIM)
    yield "ffn_gate_exps", (EXPERTS, EXPERT_WIDTH, HIDDEN)
    yield "ffn_up_exps", (EXPERTS, EXPERT_WIDTH, HIDDEN)
    yield "ffn_down_exps", (EXPERTS, HIDDEN, EXPERT_WIDTH)
    yield "ffn_gate_shexp", (EXPERT_WIDTH, HIDDEN)
    yield "ffn_up_shexp", (EXPERT_WIDTH, HIDDEN)
    yield "ffn_down_shexp", (HIDDEN, EXPERT_WIDTH)


def layer_vectors(rng, recurrent):
    """Name and values of what is small and stays F32."""
    yield "attn_norm.weight", np.ones(HIDDEN)
    yield "post_attention_norm.weight", np.ones(HIDDEN)
    if recurrent:
        yield "ssm_conv1d.weight", rng.standard_normal((2 * KEY_WIDTH + VALUE_WIDTH, TAPS)) / TAPS ** 0.5
        yield "ssm_a", -np.exp(rng.uniform(-2, 2, VALUE_HEADS))
        yield "ssm_dt.bias", rng.uniform(-3, 0, VALUE_HEADS)
        yield "ssm_norm.weight", np.ones(DELTA_DIM)
    else:
        yield "attn_q_norm.weight", np.ones(HEAD_DIM)
        yield "attn_k_norm.weight", np.ones(HEAD_DIM)
    yield "ffn_gate_inp.weight", rng.standard_normal((EXPERTS, HIDDEN)) / HIDDEN ** 0.5
    yield "ffn_gate_inp_shexp.weight", rng.standard_normal(HIDDEN) / HIDDEN ** 0.5


def add_settings(writer):
    writer.add_context_length(32768)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(EXPERT_WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(HEAD_DIM // 4)
    writer.add_rope_freq_base(1e7)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(EXPERTS_USED)
    writer.add_expert_feed_forward_length(EXPERT_WIDTH)
    writer.add_expert_shared_feed_forward_length(EXPERT_WIDTH)
    writer.add_ssm_conv_kernel(TAPS)
    writer.add_ssm_inner_size(VALUE_WIDTH)
    writer.add_ssm_state_size(DELTA_DIM)
    writer.add_ssm_time_step_rank(VALUE_HEADS)
    writer.add_ssm_group_count(KEY_HEADS)
    writer.add_full_attention_interval(INTERVAL)


def add_words(writer, words):
    """Copies the tokenizer; returns its tokens."""
    for key, field in words.fields.items():
        if key.startswith("tokenizer."):
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    return words.fields["tokenizer.ggml.tokens"].contents()


def make(words_path, out_path):
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(out_path, "qwen3next")
    add_settings(writer)
    tokens = add_words(writer, gguf.GGUFReader(words_path))

    def vector(name, values):
        writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))

    def matrix(name, values):
        q8 = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(values, q8), raw_dtype=q8)

    def random(shape):
        return rng.standard_normal(shape, dtype=np.float32) / np.float32(shape[-1] ** 0.5)

    embedding = random((len(tokens), HIDDEN))
    plain = re.compile(r"\u0120?[a-zA-Z]+")  # a space and letters, as byte-level vocabularies spell them
    embedding[[not plain.fullmatch(token) for token in tokens]] = 0  # never the best logit
    matrix("token_embd.weight", embedding)
    vector("output_norm.weight", np.ones(HIDDEN))
    for layer in range(LAYERS):
        recurrent = (layer + 1) % INTERVAL != 0
        for name, values in layer_vectors(rng, recurrent):
            vector(f"blk.{layer}.{name}", values)
        for name, shape in layer_matrices(recurrent):
            matrix(f"blk.{layer}.{name}.weight", random(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    make(sys.argv[1], sys.argv[2])
