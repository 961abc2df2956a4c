# tfaccel in an image, for `tfaccel launch --engine=kubernetes` (docs/guides/kubernetes.md) and for one machine:
#
#     docker build --tag digits:1 .                             # CPUs
#     docker build --tag digits:1 --build-arg EXTRAS=gpu .      # NVIDIA GPUs: with the CUDA libraries, without the driver
#
# EXTRAS may name several extras of setup.cfg, such as gpu,tune. Add your own code in an image `FROM digits:1`.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim
ARG EXTRAS=""

WORKDIR /opt/tfaccel
COPY setup.cfg pyproject.toml constraints.txt README.md LICENSE ./
COPY tfaccel tfaccel
COPY recipes recipes
COPY scripts scripts
COPY benchmarks benchmarks
COPY parity parity
RUN pip install --no-cache-dir --constraint constraints.txt ".${EXTRAS:+[${EXTRAS}]}" \
    && useradd --uid 1000 --create-home --home-dir /trainer trainer

# Workers are never root: Kubernetes' restricted standard asks for a number.
USER 1000
WORKDIR /trainer
CMD ["tfaccel", "--help"]
