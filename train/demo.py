r"""Serves a web page that writes with a model and shows what surprises it.

    txl demo --workdir=runs/quickstart
    txl demo --preset=my_model --port=0

Open the printed address in a browser; Ctrl-C ends the server. The page writes
text after a prompt, side by side with the memory of training and with less. It
also shows how surprising each token of a text is, with memory and without.

By default only this machine can open the page. With another --host, everybody
who can reach that address can use the page, without a password and without
encryption. Visitors are answered one after another.
"""

import sys

import txl_keras.scripts.quiet  # noqa: F401

from txl_keras.pages.playground import Playground
from txl_keras.pages.server import DemoServer
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts import trained_model
from txl_keras.scripts.options import FLAGS


class Demo(options.Options):
    """Holds the options of this command.

    host: Address or name to listen on. The default admits this machine only;
        0.0.0.0 admits everybody who can reach the machine.
    port: Port to listen on; 0 takes any free port.
    """

    host: str = "127.0.0.1"
    port: options.integer(0, 65535) = 7860


Demo.define()
trained_model.TrainedModel.define()
trained_model.define_memory_flag()


def main(_):
    # First, so that a busy port is noticed before the model is loaded.
    server = DemoServer(FLAGS.host, FLAGS.port)
    playground = Playground(*trained_model.load_trained_model())
    if not server.is_local:
        print(
            "Everybody who reaches this address can use the model, without a "
            "password and without encryption.",
            file=sys.stderr,
        )
    print(f"Open {server.url} in a browser; Ctrl-C ends.", flush=True)
    server.serve(playground)


if __name__ == "__main__":
    running.run(main)
