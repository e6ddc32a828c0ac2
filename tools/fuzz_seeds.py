#!/usr/bin/env python3
"""Seeds for the fuzz targets, from the fixtures: small files that are right. Standard library only.

    tools/fuzz_seeds.py safetensors DIR    shards cut to their smallest tensors, and bare headers
    tools/fuzz_seeds.py json DIR           configurations, indexes
    tools/fuzz_seeds.py tokenizer DIR      tokenizers cut to a small vocabulary, with a text to encode
    tools/fuzz_seeds.py gguf DIR           short lists of tokens, the smallest tensors; and one file with every type of value
    tools/fuzz_seeds.py jinja DIR          the templates of the tests
    tools/fuzz_seeds.py kimi_parser DIR    answers, whole and cut, with a byte for each marker
    tools/fuzz_seeds.py kimi_json DIR      objects in both dialects
    tools/fuzz_seeds.py http DIR           requests in all forms, right and wrong
    tools/fuzz_seeds.py anthropic DIR      bodies of /v1/messages
    tools/fuzz_seeds.py responses DIR      bodies of /v1/responses
    tools/fuzz_seeds.py call_parser DIR    tool calls of each style behind a byte for it, whole and cut
"""

import base64
import json
import struct
import sys
from pathlib import Path

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
TENSOR_BYTES = 512  # a seed's tensors are at most this large: the header is what is fuzzed
TENSORS = 6
JSON_BYTES = 16384


def small_safetensors(path):
    """The file with only its smallest tensors, or nothing when all are large."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    small = {}
    if "__metadata__" in header:
        small["__metadata__"] = header.pop("__metadata__")
    body = b""
    by_size = sorted(header.items(), key=lambda item: item[1]["data_offsets"][1] - item[1]["data_offsets"][0])
    for name, entry in by_size[:TENSORS]:
        begin, end = entry["data_offsets"]
        if end - begin > TENSOR_BYTES:
            break
        small[name] = {**entry, "data_offsets": [len(body), len(body) + end - begin]}
        body += data[8 + length + begin : 8 + length + end]
    if not body:
        return None
    text = json.dumps(small, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def small_tokenizer(path):
    """tokenizer.json with few tokens, behind a text, as src/text/tokenizer_fuzz.cpp reads it."""
    tokenizer = json.loads(path.read_text())
    model = tokenizer["model"]
    tokenizer["added_tokens"] = tokenizer["added_tokens"][:6]
    used = {token["content"] for token in tokenizer["added_tokens"]}
    if isinstance(model["vocab"], dict):
        names = [name for name in model["vocab"] if len(name) == 1][:60]
        names += [name for name in model["vocab"] if name.startswith("<0x")][::40]
        merges = []
        for left, right in model["merges"]:
            if left in names and right in names and len(merges) < 30:
                merges.append([left, right])
                names.append(left + right)
        names += [n for n in model["vocab"] if n in used or n == model.get("unk_token")]
        model["vocab"] = {name: model["vocab"][name] for name in names}
        model["merges"] = merges
    else:
        model["vocab"] = model["vocab"][:60]
    for token in tokenizer["added_tokens"]:
        if isinstance(model["vocab"], list) and token["id"] >= 60:
            token["id"] = token["id"] - 540
    text = "the river, caf\u00e9 12 " + tokenizer["added_tokens"][0]["content"]
    return text.encode() + b"\0" + json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")).encode()


def tokenizer_seeds(folder):
    for path in sorted(FIXTURES.rglob("tokenizer.json")):
        (folder / path.parent.name).write_bytes(small_tokenizer(path))
    ranks = "".join(f"{base64.b64encode(bytes([b])).decode()} {b}\n" for b in range(256)) + "dGg= 256\n"
    (folder / "tiktoken").write_bytes(b"the 12\0T" + ranks.encode())
    (folder / "gguf-gpt2").write_bytes("ab 12\0Ggpt2\nqwen2\n1a\n1b\n1ab\n1Ġ\n3<s>\n4<t>\n11\n12\nma b\n".encode())
    (folder / "gguf-llama").write_bytes("ab <s>\0Gllama\n\n2<unk>\n3<s>\n6<0x41>\n1a\n1b\n1ab\n1▁\n1▁a\n4  \n".encode())
    expressions = [r"[\p{L}&&[^\p{Han}]]+|(?i:'s|'t)", r"\s+(?!\S)|[^\S\n]{1,3}+", r"\b\w\x{41}[a-z\d\u0041]?"]
    for index, expression in enumerate(expressions):
        (folder / f"expression-{index}").write_bytes(b"\0R" + expression.encode())


GGUF_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
GGUF_BLOCKS = {0: (1, 4), 1: (1, 2), 8: (32, 34), 30: (1, 2), 39: (32, 17)}  # elements, bytes; those of the fixtures
ARRAY_ELEMENTS = 8


def gguf_text(text):
    return struct.pack("<Q", len(text)) + text


class GgufReader:
    def __init__(self, data):
        self.data, self.at = data, 24
        self.version, self.tensors, self.keys = struct.unpack_from("<IQQ", data, 4)

    def number(self, code):
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def text(self):
        length = self.number("Q")
        self.at += length
        return self.data[self.at - length : self.at]

    def value(self, kind):
        """The bytes of a value, arrays cut short."""
        if kind == 8:
            return gguf_text(self.text())
        if kind != 9:
            return struct.pack("<" + GGUF_SCALARS[kind], self.number(GGUF_SCALARS[kind]))
        of, count = self.number("I"), self.number("Q")
        elements = [self.value(of) for _ in range(count)][:ARRAY_ELEMENTS]
        return struct.pack("<IQ", of, len(elements)) + b"".join(elements)


def gguf_file(keys, tensors):
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys)
    body = b""
    for name, ne, kind, data in tensors:
        body += b"\0" * (-len(body) % 32)
        head += gguf_text(name) + struct.pack("<I", len(ne)) + struct.pack("<%dQ" % len(ne), *ne)
        head += struct.pack("<IQ", kind, len(body))
        body += data
    return head + b"\0" * (-len(head) % 32) + body


def small_gguf(path):
    """The file with its keys, lists cut short, and its smallest tensors, one of each type."""
    data = path.read_bytes()
    reader = GgufReader(data)
    keys = []
    for _ in range(reader.keys):
        key, kind = reader.text(), reader.number("I")
        keys.append(gguf_text(key) + struct.pack("<I", kind) + reader.value(kind))
    tensors = []
    for _ in range(reader.tensors):
        name = reader.text()
        ne = [reader.number("Q") for _ in range(reader.number("I"))]
        tensors.append((name, ne, reader.number("I"), reader.number("Q")))
    begin = (reader.at + 31) // 32 * 32

    def size(tensor):
        elements = 1
        for n in tensor[1]:
            elements *= n
        block, length = GGUF_BLOCKS[tensor[2]]
        return elements // block * length

    small = {}
    for tensor in sorted(tensors, key=size):
        if size(tensor) <= 2 * TENSOR_BYTES and tensor[2] not in small:
            at = begin + tensor[3]
            small[tensor[2]] = (*tensor[:3], data[at : at + size(tensor)])
    return gguf_file(keys, list(small.values()))


def gguf_of_all_types(tensor_type):
    """A key of every type; tensors of Q8_0 and another type."""
    keys = []
    for kind, code in GGUF_SCALARS.items():
        one = struct.pack("<" + code, 1)
        keys.append(gguf_text(b"s%d" % kind) + struct.pack("<I", kind) + one)
        keys.append(gguf_text(b"a%d" % kind) + struct.pack("<IIQ", 9, kind, 2) + one + one)
    keys.append(gguf_text(b"text") + struct.pack("<I", 8) + gguf_text(b"t"))
    keys.append(gguf_text(b"texts") + struct.pack("<IIQ", 9, 8, 2) + gguf_text(b"t") + gguf_text(b""))
    keys.append(gguf_text(b"general.alignment") + struct.pack("<II", 4, 32))
    return gguf_file(keys, [(b"t", (32, 2), 8, b"x" * 68), (b"u", (4,), tensor_type, b"y" * 16)])


def write_all(folder, seeds):
    for index, seed in enumerate(seeds):
        (folder / f"seed-{index:03}").write_bytes(seed if isinstance(seed, bytes) else seed.encode())


def jinja_seeds(folder):
    cases = json.loads((FIXTURES / "jinja" / "cases.json").read_text())["cases"]
    write_all(folder, [case["template"] for case in cases])


def kimi_parser_seeds(folder):
    open_, close, sep, end = "\1", "\2", "\3", "\4"
    call = (
        f'{open_}call tool="f&amp;g" index="1"{sep}{open_}argument key="s" type="string"{sep}a "b"{close}argument{sep}'
        f'{open_}argument key="n" type="number"{sep}1.5{close}argument{sep}{close}call{sep}'
    )
    block = f'{open_}call tool="f"{sep}{open_}json type="object"{sep}{{"a": [1, NaN], "a": "\\u00e9"}}{close}json{sep}'
    answer = f"think{close}think{sep}{open_}response{sep}text{close}response{sep}{open_}tools{sep}"
    answer += f"{call}{block}{close}call{sep}{close}tools{sep}{close}message{sep}{end}"
    pieces = ["\1" + answer, "\0text" + answer, "\1" + answer.replace("argument", "json"), "\1" + call, "\0" + end]
    pieces += [f'\1{open_}message role="a"{sep}x{open_}tools{sep}{call}{open_}call{sep}', f"\1{sep}{open_}no{sep}{close}x"]
    write_all(folder, pieces + [pieces[0][:length] for length in range(1, len(pieces[0]), 7)])


def kimi_json_seeds(folder):
    write_all(
        folder,
        [
            '{"a": 1, "b": [true, false, null, {"c": -0.5e+10}], "a": "\\u00e9\\ud83d\\ude00\\n\\ud83d"} rest',
            ' { "x" : NaN, "y" : -Infinity, "z":Infinity,"t":"a\tb" }',
            '"\\"\\\\\\/\\b\\f\\n\\r\\t"',
            '[1, 2.0, 1e5, 1E-5, 0, -0, "", {}, []]',
            "{}",
            '{"a" 1}',
            "[" * 210 + "]" * 210,
        ],
    )


def http_seeds(folder):
    host = "Host: h\r\n"
    post, get = f"POST /a%20b?c=%20 HTTP/1.1\r\n{host}", f"GET / HTTP/1.1\r\n{host}"
    chunked = post + "Transfer-Encoding: chunked\r\n"
    requests = [
        get + "\r\n" + post + "Content-Length: 5\r\n\r\nhello\r\n" + get + "Connection: close\r\n\r\n",
        "GET http://h:1/x?y HTTP/1.0\r\nConnection: keep-alive\r\n\r\nOPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
        chunked + "Expect: 100-continue\r\n\r\n3;a=b\r\nabc\r\n0A\r\n0123456789\r\n0\r\nX: 1\r\n\r\n" + get + "\r\n",
        chunked + "\r\n0\r\n\r\n" + chunked + "\r\n12d\r\n",
        chunked + "Content-Length: 3\r\n\r\nabc",
        chunked + "Transfer-Encoding: chunked\r\n\r\n",
        post + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        post + "Content-Length: 99999999999999999999999\r\n\r\n",
        post + "Content-Length: 301\r\n\r\n",
        post + "Transfer-Encoding: gzip\r\n\r\n",
        post + "Expect: wonders\r\n\r\n",
        post + "Folded: a\r\n b\r\n\r\n",
        "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET /%zz HTTP/1.1\r\n\r\n",
        "GET ftp://h/ HTTP/1.1\r\n\r\n",
        "CONNECT h:1 HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        get + host + "\r\n",
        get + "a:" + 4100 * "b",
    ]
    # The first four bytes say how the rest is cut.
    write_all(folder, [cut + request for request in requests for cut in ("\0\0\0\0", "\7\60\1\20")])


def anthropic_seeds(folder):
    text = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    user = {"role": "user", "content": "Hi"}
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "d"},
        text,
        {"type": "tool_use", "id": "t", "name": "get", "input": {"k": 1}},
    ]
    results = [{"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": [text]}, text]
    talk = [user, {"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
    more = [
        {"system": [text, text], "messages": talk, "tools": [{"name": "get", "input_schema": {}, "strict": False}]},
        {"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}, "stop_sequences": ["a", "b"]},
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}, "temperature": 0.5, "top_k": 4},
        {"tool_choice": {"type": "none", "disable_parallel_tool_use": False}, "stream": True, "metadata": {"user_id": "u"}},
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool", "name": "get"}, "tools": [{"name": "get", "input_schema": {}}]},
        {"messages": [{"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}, user]},
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
    ]
    write_all(folder, [json.dumps({"model": "m", "max_tokens": 9, "messages": [user], **fields}) for fields in more])


def responses_seeds(folder):
    text = {"type": "input_text", "text": "a"}
    items = [
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [text, text]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "content": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "o"}, {"type": "refusal", "refusal": "r"}]},
        {"type": "function_call", "call_id": "c", "name": "get", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [text]},
    ]
    tool = {"type": "function", "name": "get", "description": "d", "parameters": {}, "strict": False}
    more = [
        {"input": items, "instructions": "i", "tools": [tool], "tool_choice": "none"},
        {"tool_choice": {"type": "function", "name": "get"}, "tools": [tool], "parallel_tool_calls": False},
        {"include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "top_logprobs": 3, "stream": True},
        {"reasoning": {"effort": "low", "summary": "auto"}, "text": {"format": {"type": "text"}, "verbosity": "medium"}},
        {"text": {"format": {"type": "json_object"}}, "max_output_tokens": 9, "temperature": 1.5, "top_p": 0.5},
        {"metadata": {"k": "v"}, "store": False, "truncation": "disabled", "background": False, "user": "u"},
        {"previous_response_id": "resp_0"},
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
    ]
    write_all(folder, [json.dumps({"model": "m", "input": "Hi", **fields}) for fields in more])


def call_parser_seeds(folder):
    object_ = '{"name": "f", "arguments": {"s": "a\\"<b", "n": [1, {}]}}'
    parameters = "<function=f>\n<parameter=s>\na\n</parameter>\n<parameter=n>\n1.5\n</parameter>\n</function>"
    deep, sep = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
    answers = [
        f"Hm.\n<tool_call>\n{object_}\n</tool_call>\n<tool_call>{{\"arguments\": {{}}, \"name\": \"f\"}}</tool_call> x",
        f"<tool_call>\n{parameters}\n</tool_call><tool_call>\n<function=f>\n</tool_call>",
        "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>True</arg_value>\n</tool_call><tool_call>f</tool_call>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        f"<｜tool▁calls▁begin｜>{deep}function{sep}f\n```json\n{{}}\n```<｜tool▁call▁end｜>\n{deep}x<｜tool▁calls▁end｜>",
        f"<｜tool▁calls▁begin｜>{deep}f{sep}{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ' {"name": "f", "parameters": {"n": 1}}\n',
    ]
    pieces = [chr(style) + "\0" + answer for style, answer in enumerate(answers)]
    write_all(folder, pieces + [piece[0] + "\1" + piece[2:length] for piece in pieces for length in range(3, len(piece), 9)])


HANDMADE = {
    "http": http_seeds,
    "tokenizer": tokenizer_seeds,
    "jinja": jinja_seeds,
    "kimi_parser": kimi_parser_seeds,
    "kimi_json": kimi_json_seeds,
    "anthropic": anthropic_seeds,
    "responses": responses_seeds,
    "call_parser": call_parser_seeds,
}


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("safetensors", "json", "gguf", *HANDMADE):
        sys.exit(__doc__)
    kind, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    if kind in HANDMADE:
        return HANDMADE[kind](folder)
    for path in sorted(FIXTURES.rglob("*." + kind)):
        if kind == "json":
            seed = path.read_bytes()[: JSON_BYTES + 1]
        else:
            seed = small_safetensors(path) if kind == "safetensors" else small_gguf(path)
        if seed and (kind != "json" or len(seed) <= JSON_BYTES):
            (folder / "-".join(path.relative_to(FIXTURES).parts)).write_bytes(seed)
    if kind == "gguf":
        for tensor_type in (0, 4, 16, 99):  # F32; given up; not supported; unknown
            (folder / f"type-{tensor_type}").write_bytes(gguf_of_all_types(tensor_type))


if __name__ == "__main__":
    main()
