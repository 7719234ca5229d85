"""The fields of a SentencePiece model that are read or changed here.

They are declared here because the module that comes with sentencepiece needs
the newest protobuf, which other packages do not accept, and because models are
read without sentencepiece. Other fields are kept as they are.
"""

from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory
from google.protobuf import text_format

SPACE = "\u2581"  # in pieces
# Values of `type`.
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6

# A piece is bytes here, because not every file contains valid UTF-8.
_FILE = """
name: "txl_keras_sentence_piece.proto"
package: "txl_keras"
message_type {
  name: "Piece"
  field { name: "piece" number: 1 type: TYPE_BYTES }
  field { name: "type" number: 3 type: TYPE_INT32 default_value: "1" }
}
message_type {
  name: "Normalizer"
  field { name: "precompiled_charsmap" number: 2 type: TYPE_BYTES }
  field { name: "add_dummy_prefix" number: 3 type: TYPE_BOOL
          default_value: "true" }
  field { name: "remove_extra_whitespaces" number: 4 type: TYPE_BOOL
          default_value: "true" }
  field { name: "escape_whitespaces" number: 5 type: TYPE_BOOL
          default_value: "true" }
}
message_type {
  name: "Model"
  field { name: "pieces" number: 1 label: LABEL_REPEATED type_name: "Piece" }
  field { name: "normalizer_spec" number: 3 type_name: "Normalizer" }
  field { name: "denormalizer_spec" number: 5 type_name: "Normalizer" }
}
"""

_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(text_format.Parse(_FILE, descriptor_pb2.FileDescriptorProto()))
SentencePieceModel = message_factory.GetMessageClass(
    _POOL.FindMessageTypeByName("txl_keras.Model")
)
