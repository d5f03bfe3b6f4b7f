"""What an adapter must provide, with the answers that fit most frameworks."""


class Base(object):
    """All arrays at this border are NumPy; images NCHW, convolution kernels OIHW, dense weights (in, out).

    A device is "cpu" or "gpu" (the first one the framework sees).
    """

    name = ""

    def __init__(self, entry, plan):
        self.entry, self.plan = entry, plan

    def load(self):
        """Import the framework and switch on determinism; nothing before this call may import it."""
        raise NotImplementedError

    def prepare_reload(self):
        """Import what reloading needs, while the other process is still busy."""

    def versions(self):
        """``{"version": …, "cuda": build's CUDA or None, …}``."""
        raise NotImplementedError

    def gpus(self):
        """The GPUs the framework can use: dicts with what it tells of name, uuid, capability ("8.0")."""
        raise NotImplementedError

    def gpu_trouble(self):
        """The framework's own words on why it sees no GPU, or an empty text."""
        return ""

    def kernels(self):
        """``["sm_80", "compute_90", …]`` as the framework lists them, or None when it does not."""
        return None

    def first_kernel(self):
        """1 + 2, computed on the GPU and waited for."""
        import numpy as np

        one, two = self.tensor(np.ones((1, 1), np.float32), "gpu"), self.tensor(np.full((1, 1), 3, np.float32), "gpu")
        return float(self.numpy(self.matmul(one, two))[0, 0])

    def seed(self, number):
        raise NotImplementedError

    def tf32_setting(self):
        """ "on", "off" or "unknown" for matrix products and convolutions."""
        return "unknown"

    def set_tf32(self, on):
        """Switch TF32; False when this framework cannot."""
        return False

    def gpu_memory(self):
        """Bytes in use on the GPU by this process, or None when the framework does not count."""
        return None

    def release(self):
        """Give cached memory back."""

    def routes(self):
        """Check name → (write(model, x, folder) → detail, read(folder, x, device) → output, or outputs by label)."""
        raise NotImplementedError

    def compiled(self, model, x):
        """(output, how) of the model through the framework's compiler."""
        raise NotImplementedError

    def allreduce(self, count):
        """Sum of 1 on the first GPU, 2 on the second …, as each of them sees it."""
        from envforge_smoke.outcome import Unavailable

        raise Unavailable("all-reduce is not tested for this framework")
