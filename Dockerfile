# anisodiff in a container.
#
#   docker build -t anisodiff .                                                        # CPU
#   docker build -t anisodiff:cuda --build-arg TORCH_INDEX=CUDA_INDEX .     # CUDA
#   docker run --rm -v "$PWD":/work anisodiff sample cifar10-tiny --n 16 --out samples.zip
#   docker run --rm --gpus all --shm-size 1g -v "$PWD":/work anisodiff:cuda train --data photos -o run
#
# TORCH_INDEX is the address of an index of torch wheels, as PyTorch's install page shows it for "CPU" or for a version
# of CUDA. Without it torch comes from pip's own index. The CUDA wheels bring CUDA; the host needs the driver alone.
FROM python:3.12-slim

ARG TORCH_INDEX=""
WORKDIR /opt/anisodiff
COPY constraints.txt pyproject.toml README.md LICENSE ./
RUN torch=$(grep '^torch==' constraints.txt) \
    && pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$torch"
COPY src src
RUN PIP_CONSTRAINT=constraints.txt pip install --no-cache-dir ".[train]"

RUN useradd --create-home user && mkdir /work && chown user /work
USER user
WORKDIR /work
ENTRYPOINT ["anisodiff"]
CMD ["--help"]
