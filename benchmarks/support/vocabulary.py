"""A GGUF file with a vocabulary of made-up pieces, for programs that take token ids but insist on text for each."""

from __future__ import annotations

from pathlib import Path

import gguf


def with_vocabulary(source: str, folder: Path) -> str:
    """Path of a GGUF file with a vocabulary: the given one, or a copy of it in `folder`."""
    reader = gguf.GGUFReader(source)
    field = reader.get_field("tokenizer.ggml.model")
    if field is not None and field.contents() != "none":
        return source
    architecture = reader.fields["general.architecture"].contents()
    path = folder / f"{Path(source).parent.name}-{Path(source).name}"
    writer = gguf.GGUFWriter(path, architecture)
    for name, entry in reader.fields.items():
        if not name.startswith(("GGUF.", "tokenizer.")) and name != "general.architecture":
            kind, *of = entry.types
            writer.add_key_value(name, entry.contents(), kind, *of)
    rows = next(int(tensor.shape[1]) for tensor in reader.tensors if tensor.name == "token_embd.weight")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"<{row}>" for row in range(rows)])
    writer.add_token_scores([0.0] * rows)
    writer.add_token_types([int(gguf.TokenType.NORMAL)] * rows)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)
