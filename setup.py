"""Transformer-XL for Keras 3 and TensorFlow."""

import pathlib
import re

from setuptools import find_packages
from setuptools import setup
from setuptools.command.build_py import build_py

# Read and not imported, because that would import TensorFlow.
(VERSION,) = re.findall(
    r'^__version__ = "(.+)"$',
    pathlib.Path("txl_keras/__init__.py").read_text("utf-8"),
    re.MULTILINE,
)
_LIBTPU_RUNS = "sys_platform == 'linux' and platform_machine == 'x86_64'"
# tpu/compiling.py uses private parts of jax, so the versions are exact.
TPU_COMPILER = [
    f"{package}; {_LIBTPU_RUNS}"
    for package in ("jax==0.10.2", "libtpu==0.0.51")
]
DATASETS = [
    # TensorFlow Datasets needs it and does not always install it.
    "importlib_resources",
    "requests",
    "tensorflow-datasets>=4.9.7",
]
# TensorFlow Text has no wheels for Windows, where text is read as bytes.
SUBWORDS = [
    f"{package}; sys_platform != 'win32'"
    for package in ("sentencepiece", "tensorflow-text>=2.20,<2.22")
]
# For tokenizer.json of Hugging Face.
TOKENIZERS = "tokenizers>=0.21"

# 2026.0 computes wrong numbers in bfloat16; extensions/openvino.py refuses it.
OPENVINO = "openvino>=2026.4,<2027"

BEAM = "apache-beam>=2.70"

# TensorFlow 2.20 is the latest version with a TPU build.
TENSORFLOW = ">=2.20,<2.22"

# Scripts for developers, which need a checkout.
CHECKOUT_ONLY = {"benchmark", "tpu_table"}


class BuildScripts(build_py):
    """Leaves `CHECKOUT_ONLY` out of the wheel."""

    def find_package_modules(self, package, package_dir):
        modules = super().find_package_modules(package, package_dir)
        if package != "txl_keras.train":
            return modules
        return [module for module in modules if module[1] not in CHECKOUT_ONLY]


setup(
    name="txl_keras",
    version=VERSION,
    description="Transformer-XL for Keras 3 and TensorFlow.",
    long_description=pathlib.Path("README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    keywords=[
        "transformer-xl",
        "xlnet",
        "keras",
        "tensorflow",
        "language-model",
    ],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
    ],
    # The scripts and their flagfiles are installed as parts of the package.
    packages=[
        *find_packages(include=["txl_keras", "txl_keras.*"]),
        "txl_keras.train",
        "txl_keras.tpu_configs",
    ],
    package_dir={
        "txl_keras.train": "train",
        "txl_keras.tpu_configs": "tpu_configs",
    },
    package_data={
        "txl_keras": ["py.typed", "trained/*/*"],
        "txl_keras.pages": ["*.html"],
        "txl_keras.train": ["configs/**/*.flags"],
        "txl_keras.tpu_configs": ["*.flags"],
    },
    cmdclass={"build_py": BuildScripts},
    entry_points={"console_scripts": ["txl = txl_keras.scripts.txl:main"]},
    python_requires=">=3.11",
    install_requires=[
        "absl-py",
        # The code relies on how Keras variables behave on several replicas;
        # tests fail if a later Keras changes it. Muon needs 3.13.
        "keras>=3.13,<3.16",
        "matplotlib",
        "numpy",
        "safetensors>=0.8",
        f"tensorflow{TENSORFLOW}",
        "tensorboard",
        "tqdm",
        *SUBWORDS,
    ],
    extras_require={
        # For --beam_runner.
        "beam": [BEAM],
        # For --corpus=tfds:NAME.
        "datasets": DATASETS,
        # For docs/website.py and docs/generate.py --execute.
        "docs": [
            "ipykernel",
            "latex2mathml",
            "mkdocs<2",
            # Checks more than Zensical, its successor, which reads the same
            # settings: unused pages, and links to files that are not pages.
            "mkdocs-material>=9.6,<10",
            "nbclient",
        ],
        "gpu": [f"tensorflow[and-cuda]{TENSORFLOW}"],
        # Other backends of Keras: see docs/backends.md.
        "jax": ["jax"],
        "torch": ["torch"],
        # For `from_preset("hf://...")`.
        "hub": ["huggingface_hub"],
        # For engine="openvino", which generates faster on CPUs.
        "openvino": [OPENVINO],
        "tokenizers": [TOKENIZERS],
        # For --compile_only.
        "tpu_compile": TPU_COMPILER,
        "tests": [
            BEAM,
            # Runs a SavedModel without TensorFlow, too.
            OPENVINO,
            *TPU_COMPILER,
            "pytest",
            "pyppmd",  # a third compressor beside the scores
            "pytest-xdist",
            "ruff",
            # Compared with our reader and writer of its format.
            # A baseline for the text classifier.
            "scikit-learn",
            TOKENIZERS,
            # Opens pages in Chromium, where it is installed.
            "selenium",
            *DATASETS,
        ],
    },
)
