"""Sets a trainer back, so that tests share the seconds of compiling a step."""


def trainer_rewinder(trainer):
    """Returns a function that sets a trainer back to its present state."""
    variables = [
        *trainer.model.weights,
        *trainer.optimizer.variables,
        *trainer.memory.state_variables,
        trainer.step,
    ]
    if trainer.loss_scale:
        variables += trainer.loss_scale.value, trainer.loss_scale.good_steps
    values = [variable.numpy() for variable in variables]

    def rewind():
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        return trainer

    return rewind
