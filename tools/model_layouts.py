"""What tensors a checkpoint holds: names, shapes and dtypes by family, in file order. Standard library only."""

import math
from dataclasses import dataclass

# E2M1 magnitudes are 0 .5 1 1.5 2 3 4 6; with all codes equally likely their root mean square is sqrt(68.5 / 8).
E2M1_RMS = math.sqrt(68.5 / 8)


@dataclass(frozen=True)
class Fill:
    """How values are drawn: normal(mean, scale), or by `kind` between low and high. From element `used` on: zero."""

    kind: str = "normal"
    scale: float = 1.0
    mean: float = 0.0
    low: float = 0
    high: float = 0
    used: int | None = None


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple
    dtype: str
    fill: Fill
    group: int | None = None  # tensors of different groups never share a file


class Plan:
    def __init__(self, prefix):
        self.prefix, self.group, self.tensors = prefix, None, []

    def add(self, name, shape, fill, dtype="BF16"):
        self.tensors.append(Tensor(self.prefix + name, tuple(shape), dtype, fill, self.group))

    def linear(self, name, out, inputs, gain=1.0):
        """y = W x keeps the size of x when gain is 1."""
        self.add(name + ".weight", (out, inputs), Fill(scale=gain / math.sqrt(inputs)))

    def norm(self, name, size, dtype="BF16", mean=1):
        self.add(name + ".weight", (size,), Fill(scale=0.1, mean=mean), dtype)

    def mxfp4(self, name, out, inputs, gain=1.0):
        """Packed nibbles, and a scale per 32 of a row: four neighbouring powers of two, root mean square 1.15."""
        if inputs % 32:
            raise ValueError(f"{self.prefix}{name}: {inputs} inputs, MXFP4 needs a multiple of 32")
        top = 127 + round(math.log2(gain / (E2M1_RMS * math.sqrt(inputs))))
        self.add(name + ".weight_packed", (out, inputs // 2), Fill("nibbles"), "U8")
        self.add(name + ".weight_scale", (out, inputs // 32), Fill("integers", low=top - 2, high=top + 1), "U8")


def text_config(config):
    return config.get("text_config", config)


def is_full_attention(text, layer):
    """Kimi: explicit layer_types first, else the 1-based list of linear_attn_config."""
    if "layer_types" in text:
        return text["layer_types"][layer] == "full_attention"
    return layer + 1 in text["linear_attn_config"]["full_attn_layers"]


def is_moe(text, layer):
    return layer >= text["first_k_dense_replace"] and layer % text.get("moe_layer_freq", 1) == 0


def add_feed_forward(plan, name, hidden, width, out_gain):
    plan.linear(f"{name}.gate_proj", width, hidden)
    plan.linear(f"{name}.up_proj", width, hidden)
    plan.linear(f"{name}.down_proj", hidden, width, out_gain)


def add_kda(plan, name, text, k3, out_gain):
    linear = text["linear_attn_config"]
    hidden, heads, dim = text["hidden_size"], linear["num_heads"], linear["head_dim"]
    taps = linear["short_conv_kernel_size"]
    width = heads * dim
    for part in "qkv":
        plan.linear(f"{name}.{part}_proj", width, hidden)
        plan.add(f"{name}.{part}_conv1d.weight", (width, 1, taps), Fill(scale=0.5), "F32" if k3 else "BF16")
    plan.linear(f"{name}.f_a_proj", dim, hidden)
    plan.linear(f"{name}.f_b_proj", width, dim)
    plan.linear(f"{name}.b_proj", heads, hidden)
    if linear.get("gate_lower_bound") is not None:
        # g = bound * sigmoid(e^A z): around bound * sigmoid(-3) a step, a memory of a few positions to some hundreds.
        a_log, dt_bias = Fill(scale=0.5, used=heads), Fill(scale=1, mean=-3)
    else:
        # g = -e^A softplus(z), with the usual initialisation of gated linear layers.
        a_log = Fill("log_of_uniform", low=1, high=16, used=heads)
        dt_bias = Fill("log_uniform_inverse_softplus", low=1e-3, high=0.1)
    padded = -(-heads // 128) * 128  # published K3 files pad the heads
    plan.add(f"{name}.A_log", (padded,) if k3 else (1, 1, heads, 1), a_log, "F32")
    plan.add(f"{name}.dt_bias", (width,), dt_bias, "F32")
    if linear.get("use_full_rank_gate"):
        plan.linear(f"{name}.g_proj", width, hidden)
    else:
        plan.linear(f"{name}.g_a_proj", dim, hidden)
        plan.linear(f"{name}.g_b_proj", width, dim)
    plan.norm(f"{name}.o_norm", dim, "F32" if k3 else "BF16")
    plan.linear(f"{name}.o_proj", hidden, width, out_gain)


def add_mla(plan, name, text, out_gain):
    hidden, heads = text["hidden_size"], text["num_attention_heads"]
    nope, rope, value = text["qk_nope_head_dim"], text["qk_rope_head_dim"], text["v_head_dim"]
    q_rank, kv_rank = text.get("q_lora_rank"), text["kv_lora_rank"]
    if q_rank:
        plan.linear(f"{name}.q_a_proj", q_rank, hidden)
        plan.norm(f"{name}.q_a_layernorm", q_rank)
        plan.linear(f"{name}.q_b_proj", heads * (nope + rope), q_rank)
    else:
        plan.linear(f"{name}.q_proj", heads * (nope + rope), hidden)
    plan.linear(f"{name}.kv_a_proj_with_mqa", kv_rank + rope, hidden)
    plan.norm(f"{name}.kv_a_layernorm", kv_rank)
    plan.linear(f"{name}.kv_b_proj", heads * (nope + value), kv_rank)
    if text.get("mla_use_output_gate"):
        plan.linear(f"{name}.g_proj", heads * value, hidden)
    plan.linear(f"{name}.o_proj", hidden, heads * value, out_gain)


def add_moe(plan, name, text, packed, out_gain):
    hidden, inner, experts = text["hidden_size"], text["moe_intermediate_size"], text["num_experts"]
    latent = text.get("routed_expert_hidden_size")
    width = latent or hidden
    plan.linear(f"{name}.gate", experts, hidden)
    plan.add(f"{name}.gate.e_score_correction_bias", (experts,), Fill(scale=0.05), "F32")
    if latent:
        plan.linear(f"{name}.routed_expert_down_proj", latent, hidden)
        if text.get("latent_moe_use_norm"):
            plan.norm(f"{name}.routed_expert_norm", latent)
        plan.linear(f"{name}.routed_expert_up_proj", hidden, latent, out_gain)
    add_expert = plan.mxfp4 if packed else plan.linear
    for expert in range(experts):
        add_expert(f"{name}.experts.{expert}.w1", inner, width)
        add_expert(f"{name}.experts.{expert}.w3", inner, width)
        add_expert(f"{name}.experts.{expert}.w2", width, inner, 1.0 if latent else out_gain)
    if text["num_shared_experts"]:
        add_feed_forward(plan, f"{name}.shared_experts", hidden, inner * text["num_shared_experts"], out_gain)


def add_embedding_and_head(plan, text, tied):
    hidden, vocabulary = text["hidden_size"], text["vocab_size"]
    plan.add("model.embed_tokens.weight", (vocabulary, hidden), Fill())
    if not tied:
        plan.linear("lm_head", vocabulary, hidden)
    plan.norm("model.norm", hidden)


def plan_kimi(config, k3):
    text = text_config(config)
    plan = Plan("language_model." if k3 else "")
    hidden, layers = text["hidden_size"], text["num_hidden_layers"]
    out_gain = 1 / math.sqrt(2 * layers)  # the stream's size stays near 1 to the last layer
    packed = k3 and text.get("quantization_config") is not None
    residuals = k3 and text.get("attn_res_block_size") is not None
    for layer in range(layers):
        plan.group = layer if k3 else None
        name = f"model.layers.{layer}"
        plan.norm(f"{name}.input_layernorm", hidden)
        plan.norm(f"{name}.post_attention_layernorm", hidden)
        if residuals:
            for part in ("self_attention_res", "mlp_res"):
                plan.norm(f"{name}.{part}_norm", hidden)
                plan.linear(f"{name}.{part}_proj", 1, hidden)
        if is_full_attention(text, layer):
            add_mla(plan, f"{name}.self_attn", text, out_gain)
        else:
            add_kda(plan, f"{name}.self_attn", text, k3, out_gain)
        if is_moe(text, layer):
            add_moe(plan, f"{name}.block_sparse_moe", text, packed, out_gain)
        else:
            add_feed_forward(plan, f"{name}.mlp", hidden, text["intermediate_size"], out_gain)
    plan.group = layers if k3 else None
    add_embedding_and_head(plan, text, config.get("tie_word_embeddings", False))
    if residuals:
        plan.norm("model.output_attn_res_norm", hidden)
        plan.linear("model.output_attn_res_proj", 1, hidden)
    return plan.tensors


def plan_llama(config):
    plan = Plan("")
    hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    out_gain = 1 / math.sqrt(2 * layers)
    add_embedding_and_head(plan, config, config.get("tie_word_embeddings", False))
    for layer in range(layers):
        name = f"model.layers.{layer}"
        plan.norm(f"{name}.input_layernorm", hidden)
        plan.norm(f"{name}.post_attention_layernorm", hidden)
        for part, out, inputs, gain in (
            ("q", heads * head_dim, hidden, 1.0),
            ("k", kv_heads * head_dim, hidden, 1.0),
            ("v", kv_heads * head_dim, hidden, 1.0),
            ("o", hidden, heads * head_dim, out_gain),
        ):
            plan.linear(f"{name}.self_attn.{part}_proj", out, inputs, gain)
            if config.get("attention_bias"):
                plan.add(f"{name}.self_attn.{part}_proj.bias", (out,), Fill(scale=0.1))
        add_feed_forward(plan, f"{name}.mlp", hidden, config["intermediate_size"], out_gain)
        if config.get("mlp_bias"):
            for part, size in (("gate", "intermediate_size"), ("up", "intermediate_size"), ("down", "hidden_size")):
                plan.add(f"{name}.mlp.{part}_proj.bias", (config[size],), Fill(scale=0.1))
    return plan.tensors


def add_gated_delta(plan, name, config, out_gain):
    hidden, taps = config["hidden_size"], config["linear_conv_kernel_dim"]
    heads = config["linear_num_value_heads"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = heads * config["linear_value_head_dim"]
    plan.linear(f"{name}.in_proj_qkvz", 2 * keys + 2 * values, hidden)
    plan.linear(f"{name}.in_proj_ba", 2 * heads, hidden)
    plan.add(f"{name}.conv1d.weight", (2 * keys + values, 1, taps), Fill(scale=0.5))
    plan.add(f"{name}.A_log", (heads,), Fill("log_of_uniform", low=1, high=16))
    plan.add(f"{name}.dt_bias", (heads,), Fill("log_uniform_inverse_softplus", low=1e-3, high=0.1))
    plan.norm(f"{name}.norm", config["linear_value_head_dim"])
    plan.linear(f"{name}.out_proj", hidden, values, out_gain)


def add_gated_attention(plan, name, config, out_gain):
    hidden, dim = config["hidden_size"], config["head_dim"]
    width, kv_width = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    plan.linear(f"{name}.q_proj", 2 * width, hidden)  # a query and a gate for each head
    plan.linear(f"{name}.k_proj", kv_width, hidden)
    plan.linear(f"{name}.v_proj", kv_width, hidden)
    plan.norm(f"{name}.q_norm", dim, mean=0)
    plan.norm(f"{name}.k_norm", dim, mean=0)
    plan.linear(f"{name}.o_proj", hidden, width, out_gain)


def plan_qwen3_next(config):
    """Norms but that of Gated DeltaNet multiply by 1 + w."""
    plan = Plan("")
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    out_gain = 1 / math.sqrt(2 * layers)
    plan.add("model.embed_tokens.weight", (config["vocab_size"], hidden), Fill())
    if not config.get("tie_word_embeddings", False):
        plan.linear("lm_head", config["vocab_size"], hidden)
    plan.norm("model.norm", hidden, mean=0)
    for layer in range(layers):
        name = f"model.layers.{layer}"
        plan.norm(f"{name}.input_layernorm", hidden, mean=0)
        plan.norm(f"{name}.post_attention_layernorm", hidden, mean=0)
        if "layer_types" in config:
            full = config["layer_types"][layer] == "full_attention"
        else:
            full = (layer + 1) % config.get("full_attention_interval", 4) == 0
        if full:
            add_gated_attention(plan, f"{name}.self_attn", config, out_gain)
        else:
            add_gated_delta(plan, f"{name}.linear_attn", config, out_gain)
        mlp = f"{name}.mlp"
        if layer in config["mlp_only_layers"] or (layer + 1) % config["decoder_sparse_step"]:
            add_feed_forward(plan, mlp, hidden, config["intermediate_size"], out_gain)
            continue
        plan.linear(f"{mlp}.gate", config["num_experts"], hidden)
        for expert in range(config["num_experts"]):
            add_feed_forward(plan, f"{mlp}.experts.{expert}", hidden, config["moe_intermediate_size"], out_gain)
        add_feed_forward(plan, f"{mlp}.shared_expert", hidden, config["shared_expert_intermediate_size"], out_gain)
        plan.linear(f"{mlp}.shared_expert_gate", 1, hidden)
    return plan.tensors


def plan_tensors(config):
    family = config["model_type"]
    if family == "kimi_k3":
        return plan_kimi(config, k3=True)
    if family == "kimi_linear":
        return plan_kimi(config, k3=False)
    if family == "llama":
        return plan_llama(config)
    if family == "qwen3_next":
        return plan_qwen3_next(config)
    raise ValueError(f'config: model_type is "{family}"; known are kimi_k3, kimi_linear, llama, qwen3_next')
