"""The fields of a SentencePiece model that are read or changed here.

They are declared here because the module that comes with sentencepiece needs
the newest protobuf, which other packages do not accept, and because models are
read without sentencepiece. Other fields are kept as they are.
"""

from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory

SPACE = "\u2581"  # in pieces
# Values of `type`.
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6

_FIELD = descriptor_pb2.FieldDescriptorProto
# Number, type and default of each field of sentencepiece's messages.
_PIECE = {
    # As bytes: not every file contains valid UTF-8.
    "piece": (1, _FIELD.TYPE_BYTES, ""),
    "type": (3, _FIELD.TYPE_INT32, f"{NORMAL}"),
}
_NORMALIZER = {
    "precompiled_charsmap": (2, _FIELD.TYPE_BYTES, ""),
    "add_dummy_prefix": (3, _FIELD.TYPE_BOOL, "true"),
    "remove_extra_whitespaces": (4, _FIELD.TYPE_BOOL, "true"),
    "escape_whitespaces": (5, _FIELD.TYPE_BOOL, "true"),
}


def _model_class():
    file = descriptor_pb2.FileDescriptorProto(
        name="txl_keras_sentence_piece.proto", package="txl_keras"
    )
    for name, fields in (("Piece", _PIECE), ("Normalizer", _NORMALIZER)):
        message = file.message_type.add(name=name)
        for field, (number, kind, default) in fields.items():
            message.field.add(
                name=field,
                number=number,
                type=kind,
                label=_FIELD.LABEL_OPTIONAL,
                default_value=default,
            )
    model = file.message_type.add(name="Model")
    for field, number, kind, label in (
        ("pieces", 1, "Piece", _FIELD.LABEL_REPEATED),
        ("normalizer_spec", 3, "Normalizer", _FIELD.LABEL_OPTIONAL),
        ("denormalizer_spec", 5, "Normalizer", _FIELD.LABEL_OPTIONAL),
    ):
        model.field.add(
            name=field,
            number=number,
            type=_FIELD.TYPE_MESSAGE,
            type_name=f".txl_keras.{kind}",
            label=label,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName("txl_keras.Model")
    return message_factory.GetMessageClass(found)


SentencePieceModel = _model_class()
