"""Dimensions of a Kimi K3 text model, and config.json in the published layout."""
import dataclasses
import json

SPECIALS = 256  # the tokenizer of Kimi's repositories always adds 256 ids behind the ranks


@dataclasses.dataclass
class Config:
    vocab: int = 2048
    hidden: int = 256
    layers: int = 8
    full: tuple = (4, 8)  # MLA layers, counted from 1
    block: int = 2  # layers of a block of the attention residual
    kda_heads: int = 3
    kda_dim: int = 64
    taps: int = 4
    lower_bound: float = -5.0
    heads: int = 4
    q_lora: int = 128
    kv_lora: int = 96
    nope: int = 32
    rope: int = 32
    value: int = 64
    inter: int = 384
    experts: int = 24
    top_k: int = 6
    shared: int = 1
    moe_inter: int = 64
    latent: int = 128
    beta: float = 4.0
    linear_beta: float = 25.0
    eps: float = 1e-5
    latent_eps: float = 1e-6  # of q_a_layernorm and kv_a_layernorm
    max_positions: int = 32768

    def is_kda(self, layer):
        return layer + 1 not in self.full

    @staticmethod
    def load(folder):
        with open(f"{folder}/config.json") as file:
            text = json.load(file)["text_config"]
        linear = text["linear_attn_config"]
        return Config(vocab=text["vocab_size"], hidden=text["hidden_size"], layers=text["num_hidden_layers"],
                      full=tuple(linear["full_attn_layers"]), block=text["attn_res_block_size"],
                      kda_heads=linear["num_heads"], kda_dim=linear["head_dim"],
                      taps=linear["short_conv_kernel_size"], lower_bound=linear["gate_lower_bound"],
                      heads=text["num_attention_heads"], q_lora=text["q_lora_rank"], kv_lora=text["kv_lora_rank"],
                      nope=text["qk_nope_head_dim"], rope=text["qk_rope_head_dim"], value=text["v_head_dim"],
                      inter=text["intermediate_size"], experts=text["num_experts"],
                      top_k=text["num_experts_per_token"], shared=text["num_shared_experts"],
                      moe_inter=text["moe_intermediate_size"], latent=text["routed_expert_hidden_size"],
                      beta=text["activation_situ_beta"], linear_beta=text["activation_situ_linear_beta"],
                      eps=text["rms_norm_eps"], max_positions=text["max_position_embeddings"])

    def published(self):
        """config.json as an object; ids of special tokens follow from the vocabulary."""
        first = self.vocab - SPECIALS
        ids = {"bos_token_id": first, "eos_token_id": first + 2, "pad_token_id": self.vocab - 1}
        weights = {"actorder": None, "block_structure": None, "dynamic": False, "group_size": 32, "num_bits": 4,
                   "observer": "minmax", "observer_kwargs": {}, "scale_dtype": "torch.uint8", "strategy": "group",
                   "symmetric": True, "type": "float", "zp_dtype": None}
        kda = [layer + 1 for layer in range(self.layers) if self.is_kda(layer)]
        text = {
            **ids, "activation_situ_beta": self.beta, "activation_situ_linear_beta": self.linear_beta,
            "architectures": ["KimiLinearForCausalLM"], "attn_res_block_size": self.block, "dtype": "bfloat16",
            "first_k_dense_replace": 1, "hidden_act": "situ", "hidden_size": self.hidden, "initializer_range": 0.02,
            "intermediate_size": self.inter, "kv_lora_rank": self.kv_lora, "latent_moe_use_norm": True,
            "linear_attn_config": {
                "full_attn_layers": list(self.full), "gate_lower_bound": self.lower_bound,
                "head_dim": self.kda_dim, "kda_layers": kda, "num_heads": self.kda_heads,
                "short_conv_kernel_size": self.taps, "use_full_rank_gate": True},
            "max_position_embeddings": self.max_positions, "mla_use_nope": True, "mla_use_output_gate": True,
            "model_type": "kimi_linear", "moe_intermediate_size": self.moe_inter, "moe_layer_freq": 1,
            "moe_renormalize": True, "moe_router_activation_func": "sigmoid", "num_attention_heads": self.heads,
            "num_expert_group": 1, "num_experts": self.experts, "num_experts_per_token": self.top_k,
            "num_hidden_layers": self.layers, "num_key_value_heads": self.heads, "num_nextn_predict_layers": 0,
            "num_shared_experts": self.shared, "q_lora_rank": self.q_lora, "qk_nope_head_dim": self.nope,
            "qk_rope_head_dim": self.rope,
            "quantization_config": {
                "config_groups": {"group_0": {"format": "mxfp4-pack-quantized", "input_activations": None,
                                              "output_activations": None, "targets": ["Linear"],
                                              "weights": weights}},
                "format": "mxfp4-pack-quantized", "global_compression_ratio": None,
                "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*",
                           "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*",
                           "re:.*block_sparse_moe\\.gate$", "re:.*routed_expert_(down|up)_proj.*"],
                "kv_cache_scheme": None, "quant_method": "compressed-tensors",
                "quantization_status": "compressed"},
            "rms_norm_eps": self.eps, "routed_expert_hidden_size": self.latent, "routed_scaling_factor": 1.0,
            "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc", "use_cache": True,
            "use_grouped_topk": True, "v_head_dim": self.value, "vocab_size": self.vocab}
        return {"architectures": ["KimiK3ForConditionalGeneration"], **ids, "dtype": "bfloat16",
                "ignore_index": -100, "image_placeholder": "<|kimi_image_placeholder|>",
                "media_placeholder_token_id": first + 21, "model_type": "kimi_k3",
                "text_config": dict(sorted(text.items())), "tie_word_embeddings": False}
