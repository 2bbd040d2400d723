//! Writes an assignment: worker threads quantize, the calling thread appends the pieces in order.

use crate::error::ConvertError;
use crate::quantize::assigned_tensor::AssignedTensor;
use crate::quantize::assignment::Assignment;
use crate::quantize::gptq::Gptq;
use crate::quantize::importance::Importances;
use crate::quantize::jobs::{QuantErrorSums, QuantizeJob, QuantizeWorker, jobs};
use crate::quantize::rounded::RoundedMatrices;
use latent_formats::identity::{FNV_START, fnv};
use latent_formats::{OutputError, OutputFile, ResumableFile};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// Maximum number of pieces that a thread may be ahead of the file.
// It bounds the memory for finished pieces.
const AHEAD: usize = 4;

/// Interval at which the caller is asked whether to continue while no piece is finished.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Revision of the encoders.
// Increase it when an encoder produces other bytes, so that partial files of older revisions are
// not resumed.
const REVISION: u32 = 2;

#[derive(Clone, Debug)]
pub struct WrittenTensor {
    /// The tensor and its assigned type.
    pub assigned: AssignedTensor,
    /// √(Σ w·(x − x̂)² ÷ Σ w·x²), with w the importances. `None` if the bytes were copied.
    pub error: Option<f64>,
    /// Whether the tensor had importances.
    pub weighted: bool,
    /// How its matrices were quantized, if Hessians were used.
    pub rounded: Option<RoundedMatrices>,
}

/// A written file or set of files.
#[derive(Clone, Debug)]
pub struct QuantizedModel {
    /// The tensors in the order of the file.
    pub tensors: Vec<WrittenTensor>,
    /// The file, or those of the set. The first one is the one to open.
    pub files: Vec<PathBuf>,
    pub bytes: u64,
    /// Bytes that an earlier run had written.
    pub resumed: u64,
}

/// Output of a job: bytes, unless an earlier run wrote them, and error sums.
type QuantizeJobOutput = Result<(Option<Vec<u8>>, Option<QuantErrorSums>), ConvertError>;

/// Writes the files of an assignment with `threads` threads: `target`, or [those of a
/// set](Assignment::targets). After an interruption the same call resumes from the partial files
/// and yields the same bytes. `progress` receives the written and the total bytes, and returns
/// whether to continue.
///
/// # Errors
/// The target is refused, weights are not finite, an I/O error, or a requested stop. Existing
/// targets stay unchanged.
pub fn write(
    assignment: &Assignment<'_>,
    target: &Path,
    threads: usize,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<QuantizedModel, ConvertError> {
    let targets = assignment.targets(target);
    // Checked before hours of work: a path that cannot be written fails here.
    for target in &targets {
        OutputFile::check(target)?;
    }
    let bytes = assignment.bytes()?;
    let mut sums: Vec<Option<QuantErrorSums>> = vec![None; assignment.tensors.len()];
    let mut whole: Vec<HeadlessFile> = Vec::with_capacity(targets.len());
    let (mut before, mut resumed) = (0, 0);
    for (number, target) in targets.iter().enumerate() {
        let mut tell = |done: u64| progress(before + done, bytes);
        let written = write_part(assignment, (number, target), threads, &mut sums, &mut tell);
        let (written, of_earlier) = match written {
            Ok(written) => written,
            Err(error) => {
                // Other errors recur in every run, so do not leave parts to resume.
                if !matches!(
                    error,
                    ConvertError::Unfinished { .. } | ConvertError::Stopped { .. } | ConvertError::Output(_)
                ) {
                    whole.into_iter().for_each(|(file, _)| file.discard());
                }
                return Err(error);
            }
        };
        before += written.0.written();
        resumed += of_earlier;
        whole.push(written);
    }
    // All files get their names together, so a failed run leaves no partial set.
    ResumableFile::publish_all(whole)?;
    let tensors = assignment.tensors.iter().zip(sums).map(|(assigned, sums)| WrittenTensor {
        assigned: assigned.clone(),
        error: sums.map(|sums| if sums.squares > 0.0 { (sums.errors / sums.squares).sqrt() } else { 0.0 }),
        weighted: assignment.importances.is_some_and(|all| all.has(&assigned.name)),
        rounded: assignment.rounded(assigned),
    });
    Ok(QuantizedModel { tensors: tensors.collect(), files: targets, bytes, resumed })
}

/// A file without its first bytes, and these bytes. They are written when the whole set is
/// complete.
type HeadlessFile = (ResumableFile, [u8; ResumableFile::COUNT_BYTES]);

/// Writes the file at an index without giving it its name. Also returns the bytes that an earlier
/// run had written.
fn write_part(
    assignment: &Assignment<'_>,
    (number, target): (usize, &Path),
    threads: usize,
    sums: &mut [Option<QuantErrorSums>],
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<(HeadlessFile, u64), ConvertError> {
    let header = assignment.header(number)?;
    let jobs = jobs(assignment, number)?;
    let total = jobs.last().map_or(header.len() as u64, |job| job.at + job.bytes as u64);
    let mut file = ResumableFile::open(target, fingerprint(assignment, &header))?;
    let resumed = file.written();
    // Resuming is possible only at the boundary of a job: a part of a job cannot be appended.
    if resumed != total && resumed != header.len() as u64 && !jobs.iter().any(|job| job.at == resumed) {
        file.begin_anew()?;
    }
    let resumed = file.written();
    let done = (|| {
        if resumed == 0 {
            file.append(&header).map_err(WriteInterruption::Io)?;
        }
        let work = WriteContext { assignment, jobs: &jobs, resumed, part: file.part().to_owned() };
        let mut add = |job: &QuantizeJob, of_job: Option<QuantErrorSums>| {
            if let Some(of_job) = of_job {
                sums[job.tensor].get_or_insert_default().add(of_job);
            }
        };
        work.run(&mut file, threads.clamp(1, latent_threads::MAX_THREADS), &mut add, progress)?;
        // Record the bytes now: if a later file of the set fails, the next run resumes from here.
        file.count().map_err(WriteInterruption::Io)
    })();
    if let Err(ended) = done {
        return Err(unfinished(ended, file, target));
    }
    let mut start = [0; ResumableFile::COUNT_BYTES];
    // Until the set is complete, the file begins with the count of written bytes, so that no reader
    // takes it for a GGUF file.
    start.copy_from_slice(&header[..ResumableFile::COUNT_BYTES]);
    Ok(((file, start), resumed))
}

/// Reason why writing ended early.
enum WriteInterruption {
    Io(std::io::Error),
    Asked,
    Failed(ConvertError),
}

fn unfinished(ended: WriteInterruption, mut file: ResumableFile, target: &Path) -> ConvertError {
    // On failure, the next run writes the uncounted bytes again.
    let _ = file.count();
    let (part, written) = (file.part().to_owned(), file.counted());
    if written == 0 || matches!(ended, WriteInterruption::Failed(_)) {
        file.discard();
    }
    match ended {
        WriteInterruption::Io(error) if written == 0 => {
            OutputError::Io { path: target.to_owned(), error }.into()
        }
        WriteInterruption::Io(error) => {
            ConvertError::Unfinished { target: target.to_owned(), part, written, error }
        }
        WriteInterruption::Asked => ConvertError::Stopped { part, written },
        WriteInterruption::Failed(error) => error,
    }
}

/// State shared by all threads.
struct WriteContext<'a> {
    assignment: &'a Assignment<'a>,
    jobs: &'a [QuantizeJob],
    resumed: u64,
    part: PathBuf,
}

impl WriteContext<'_> {
    /// Threads take the jobs round-robin, so that the next piece of the file always comes from the
    /// next thread and no reordering is needed.
    fn run(
        &self,
        file: &mut ResumableFile,
        threads: usize,
        add: &mut dyn FnMut(&QuantizeJob, Option<QuantErrorSums>),
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), WriteInterruption> {
        thread::scope(|scope| {
            let mut pieces = Vec::with_capacity(threads);
            for first in 0..threads {
                // One bounded channel per thread: the writer takes pieces in order, and fast
                // threads wait.
                let (sender, receiver) = sync_channel(AHEAD);
                pieces.push(receiver);
                let mine = self.jobs.iter().skip(first).step_by(threads);
                let spawned = thread::Builder::new()
                    .name(format!("quantize-{first}"))
                    .spawn_scoped(scope, move || self.quantize(mine, &sender));
                spawned.map_err(WriteInterruption::Io)?;
            }
            for (number, job) in self.jobs.iter().enumerate() {
                let piece = loop {
                    match pieces[number % threads].recv_timeout(ASK_EVERY) {
                        Ok(piece) => break piece,
                        // A slow job must not delay a stop requested by the user.
                        Err(RecvTimeoutError::Timeout) if go_on(job.at) => {}
                        Err(RecvTimeoutError::Timeout) => return Err(WriteInterruption::Asked),
                        Err(RecvTimeoutError::Disconnected) => {
                            return Err(WriteInterruption::Io(std::io::Error::other(
                                "a worker thread stopped early",
                            )));
                        }
                    }
                };
                let (bytes, sums) = piece.map_err(WriteInterruption::Failed)?;
                add(job, sums);
                if let Some(bytes) = bytes {
                    file.append(&bytes).map_err(WriteInterruption::Io)?;
                }
                if !go_on(job.at + job.bytes as u64) {
                    return Err(WriteInterruption::Asked);
                }
            }
            Ok(())
        })
    }

    /// Loop of a worker thread. Ends when all jobs are done or the receiver is dropped.
    fn quantize<'j>(
        &self,
        jobs: impl Iterator<Item = &'j QuantizeJob>,
        sender: &SyncSender<QuantizeJobOutput>,
    ) {
        let mut worker = QuantizeWorker::default();
        for job in jobs {
            // Written by an earlier run: only measure its errors.
            let piece = if job.at + job.bytes as u64 <= self.resumed {
                worker.compare(self.assignment, job, &self.part).map(|sums| (None, sums))
            } else {
                worker.quantize(self.assignment, job).map(|(bytes, sums)| (Some(bytes), sums))
            };
            let failed = piece.is_err();
            // The receiver is dropped if the writer failed or was stopped.
            if sender.send(piece).is_err() || failed {
                return;
            }
        }
    }
}

/// Fingerprint of everything that determines the bytes of the file.
fn fingerprint(assignment: &Assignment<'_>, header: &[u8]) -> u64 {
    let identity = assignment.weights.identity();
    let gptq = assignment.gptq.as_ref().map(Gptq::fingerprint);
    let numbers = [
        identity.header,
        identity.sample,
        u64::from(REVISION),
        assignment.importances.map_or(0, Importances::fingerprint),
    ];
    let numbers = numbers.iter().chain(gptq.iter().flatten());
    numbers.fold(fnv(FNV_START, header), |hash, number| fnv(hash, &number.to_le_bytes()))
}
