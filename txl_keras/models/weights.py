"""The weights of a model by name."""


def weights_by_name(model):
    """The variables of a model, by what they are called inside of it.

    `tf.train.Checkpoint(model=...)` is not enough: of a Keras 3 model it
    leaves out, without a word, the layers that are kept in a list.

    Args:
        model: The model.

    Returns:
        Dictionary such as `{"block_0/attention/query/kernel": variable}`.
    """
    # The first part of a path is the name of the model, which counts up.
    return {
        weight.path.split("/", 1)[1]: weight.value for weight in model.weights
    }
