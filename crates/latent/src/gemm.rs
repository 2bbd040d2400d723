//! FP4 and INT4 GEMM with a thread pool.

use crate::error::{Error, ErrorKind};
use crate::process::Process;
use latent_marlin::half::f16;
use latent_marlin::{Activations, Input, Kernel, Marlin, Options, Packed, QuantType, Shape, Weight};
use latent_threads::{MAX_THREADS, PinPolicy, Placement, Topology};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// What the parent of a forked child did, for the error.
const STARTED: &str = "started the threads for products";

/// Threads and memory for products with 4-bit weights. Concurrent calls run one after the other.
///
/// ```
/// fn shared<T: Send + Sync + 'static>() {}
/// shared::<latent::GemmHandle>();
/// ```
pub struct GemmHandle {
    process: Process,
    /// `None` only after a drop in a forked child.
    marlin: Mutex<Option<Marlin>>,
}

impl GemmHandle {
    /// Starts `threads` threads. 0: one for each core that affinity and cgroup quotas leave to this
    /// process.
    ///
    /// # Errors
    /// If `threads` exceeds the maximum, or the system cannot start them.
    pub fn new(threads: usize) -> Result<GemmHandle, Error> {
        if threads > MAX_THREADS {
            return Err(Error::argument(format!("{threads} threads, expected at most {MAX_THREADS}")));
        }
        let (topology, parallelism) = (Topology::detect(), latent_threads::parallelism());
        let threads = if threads > 0 { threads } else { latent_threads::threads_for(&topology, parallelism) };
        // The calling thread computes too, and must not be bound to a CPU.
        let marlin = Marlin::placed(&Placement::new(&topology, parallelism, threads, PinPolicy::Off))?;
        Ok(GemmHandle { process: Process::this(), marlin: Mutex::new(Some(marlin)) })
    }

    /// Whether this is the process that started the threads.
    pub fn is_of_this_process(&self) -> bool {
        self.process.is_this()
    }

    /// y = x · W: `m` rows of K inputs, `m` rows of N results.
    ///
    /// # Errors
    /// If an operand has a wrong length, no kernel supports the forced options, or this is a forked
    /// child.
    pub fn multiply(
        &self,
        options: &GemmOptions,
        w: &Weight<'_>,
        x: Input<'_>,
        m: usize,
        y: &mut [f32],
    ) -> Result<(), Error> {
        self.with(|marlin| marlin.multiply_with(&options.0, w, x, m, y))
    }

    /// Decodes a weight to f32 `[K, N]`.
    ///
    /// # Errors
    /// If `out` has a wrong length, or this is a forked child.
    pub fn dequantize(&self, w: &Weight<'_>, out: &mut [f32]) -> Result<(), Error> {
        self.with(|marlin| marlin.dequantize(w, out))
    }

    /// Decodes a weight to f16 `[K, N]`.
    ///
    /// # Errors
    /// If `out` has a wrong length, or this is a forked child.
    pub fn dequantize_f16(&self, w: &Weight<'_>, out: &mut [f16]) -> Result<(), Error> {
        self.with(|marlin| marlin.dequantize_f16(w, out))
    }

    fn with(&self, work: impl FnOnce(&mut Marlin) -> Result<(), latent_marlin::Error>) -> Result<(), Error> {
        // Before the lock: in a forked child, it may be held by a thread that exists only in the
        // parent.
        self.process.check_that(STARTED, "start them in the child")?;
        // Panics are caught while the lock is held, so that it is not poisoned.
        let mut marlin = self.marlin.lock().unwrap_or_else(PoisonError::into_inner);
        // Only `drop` takes the value, so it is present here.
        let Some(marlin) = marlin.as_mut() else { return Ok(()) };
        match catch_unwind(AssertUnwindSafe(|| work(marlin))) {
            Ok(done) => Ok(done?),
            Err(panic) => Err(Error::panicked(&*panic)),
        }
    }
}

impl Drop for GemmHandle {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // A forked child does not have the threads, so joining them would never return.
            let marlin = self.marlin.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(marlin.take());
        }
    }
}

/// Options that force the kernel of a product. By default, the shape decides.
#[derive(Clone, Debug, Default)]
pub struct GemmOptions(Options);

impl GemmOptions {
    /// The names of the options of [`set`](Self::set).
    pub const WORDS: [&'static str; 3] = ["kernel", "isa", "activations"];

    /// Sets an option by its name. With `auto`, the shape decides.
    ///
    /// # Errors
    /// If the name or the value is unknown. The message lists the known ones.
    pub fn set(&mut self, name: &str, word: &str) -> Result<(), Error> {
        let options = &mut self.0;
        match name {
            "kernel" => {
                options.kernel = chosen(name, word, Kernel::ALL.map(|kernel| (kernel.name(), kernel)))?
            }
            "isa" if word == "auto" => options.tier = None,
            "isa" => {
                let tier = word.parse();
                options.tier =
                    Some(tier.map_err(|problem| Error::argument(format!("isa {word:?}: {problem}")))?);
            }
            "activations" => {
                let found = chosen(name, word, [("bf16", Activations::Bf16), ("int8", Activations::Int8)])?;
                options.activations = found.unwrap_or_default();
            }
            _ => {
                let known = Self::WORDS.join(", ");
                return Err(Error::argument(format!("unknown option {name:?}; expected one of {known}")));
            }
        }
        Ok(())
    }

    /// The options, for products on a device.
    pub fn forced(&self) -> &Options {
        &self.0
    }

    /// Selects the striped kernel, with K split into `parallel` slices (the parallel factor).
    pub fn stripe(&mut self, parallel: usize) {
        self.0.kernel = Some(Kernel::Striped);
        self.0.slices = Some(parallel);
    }
}

/// The value of a word. `None` for `auto`.
fn chosen<T, const N: usize>(name: &str, word: &str, known: [(&str, T); N]) -> Result<Option<T>, Error> {
    if word == "auto" {
        return Ok(None);
    }
    let words = known.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
    let found = known.into_iter().find(|(known, _)| *known == word);
    found
        .map(|(_, value)| Some(value))
        .ok_or_else(|| Error::argument(format!("{name} {word:?}: expected auto, {words}")))
}

/// The type of a weight by its name.
///
/// # Errors
/// If the name is unknown. The message lists the known ones.
pub fn quant_type(name: &str) -> Result<QuantType, Error> {
    QuantType::ALL.into_iter().find(|quant| quant.name() == name).ok_or_else(|| {
        let known = QuantType::ALL.map(QuantType::name).join(", ");
        Error::argument(format!("quant_type {name:?}: expected {known}"))
    })
}

/// Packs a dense weight `[K, N]`.
///
/// # Errors
/// If K is not a multiple of 8 or of the group, the length is wrong, a weight is not finite, or a
/// scale exceeds f16.
pub fn pack(quant: QuantType, dense: &[f32], shape: Shape) -> Result<Packed, Error> {
    let pack = match quant {
        QuantType::Fp4 => latent_marlin::pack_fp4,
        QuantType::Int4 => latent_marlin::pack_u4,
        QuantType::Int4Sym => latent_marlin::pack_u4_sym,
    };
    Ok(pack(dense, shape)?)
}

impl From<latent_marlin::Error> for Error {
    fn from(error: latent_marlin::Error) -> Error {
        let kind = match &error {
            latent_marlin::Error::Threads(_) => ErrorKind::Engine,
            latent_marlin::Error::Overflow { .. } | latent_marlin::Error::DeviceMemory(_) => {
                ErrorKind::Memory
            }
            latent_marlin::Error::DeviceFault(_) => ErrorKind::Engine,
            latent_marlin::Error::NoGpu { .. } => ErrorKind::Unsupported,
            latent_marlin::Error::Forked { .. } => ErrorKind::Forked,
            _ => ErrorKind::Argument { name: None },
        };
        Error::new(kind, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_list_the_known_words() {
        let mut options = GemmOptions::default();
        for (name, word, expected) in [
            ("kernel", "fast", "auto, gemm, fused, striped"),
            ("isa", "sse", "avx2"),
            ("activations", "f8", "auto, bf16, int8"),
            ("kernels", "gemm", "kernel, isa, activations"),
        ] {
            let error = options.set(name, word).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(quant_type("fp8").unwrap_err().to_string().contains("fp4, int4, int4_sym"));
        options.set("kernel", "fused").unwrap();
        assert_eq!(options.0.kernel, Some(Kernel::Fused));
        options.set("kernel", "auto").unwrap();
        assert_eq!(options.0.kernel, None);
    }

    #[test]
    fn threads_take_turns() {
        let shape = Shape { k: 64, n: 40, group: 32 };
        let dense: Vec<f32> = (0..64 * 40).map(|i| (i % 11) as f32 - 5.0).collect();
        let packed = pack(QuantType::Int4, &dense, shape).unwrap();
        let gemm = GemmHandle::new(2).unwrap();
        let product = || {
            let mut y = vec![0.0; 3 * 40];
            let w = packed.weight().unwrap();
            gemm.multiply(&GemmOptions::default(), &w, Input::F32(&[1.0; 3 * 64]), 3, &mut y).unwrap();
            y
        };
        let alone = product();
        std::thread::scope(|scope| {
            let others = [(); 3].map(|()| scope.spawn(product));
            for other in others {
                assert_eq!(other.join().unwrap(), alone);
            }
        });
        let error = gemm.multiply(
            &GemmOptions::default(),
            &packed.weight().unwrap(),
            Input::F32(&[1.0; 64]),
            2,
            &mut [0.0; 80],
        );
        let error = error.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Argument { name: None });
        assert!(error.message().contains("the input [2, 64] has 128 elements, but 64 were given"), "{error}");
    }

    #[test]
    fn too_many_threads_are_refused() {
        let error = GemmHandle::new(5000).err().unwrap();
        assert!(error.message().contains("5000 threads"), "{error}");
    }
}
