// Runs ONNX models in onnxruntime-web, WebAssembly with SIMD, one thread, for tests/bench/onnxruntime_web.py.
//
//     node onnxruntime_web.mjs FOLDER ANSWERS      FOLDER/node_modules/onnxruntime-web is the package
//
// Reads one request a line from stdin, as JSON, and answers each with one line of JSON on the descriptor ANSWERS. Tensors
// go through raw files: {"name", "type", "dims", "file"}. onnxruntime prints profiles to stdout, which has to be a file:
// what it cannot write at once, to a pipe, is an exception that leaves its lock behind.
import { readFileSync, writeFileSync, writeSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int64: BigInt64Array, uint64: BigUint64Array, int32: Int32Array,
  uint32: Uint32Array, int16: Int16Array, uint16: Uint16Array, int8: Int8Array, uint8: Uint8Array, bool: Uint8Array,
};

const [folder, answers] = process.argv.slice(2);
const ort = createRequire(`${folder}/`)('onnxruntime-web');
ort.env.wasm.numThreads = 1;
ort.env.logLevel = 'error';
const sessions = new Map();
let last = 0;

function tensor({ type, dims, file }) {
  const bytes = readFileSync(file); // may lie at an odd place of a larger buffer
  const kind = ARRAYS[type];
  const data = new kind(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
  return new ort.Tensor(type, data, dims);
}

function feeds(entries) {
  return Object.fromEntries(entries.map((entry) => [entry.name, tensor(entry)]));
}

const requests = {
  async open({ file, profile, optimize }) {
    const options = {
      executionProviders: ['wasm'], enableProfiling: profile, graphOptimizationLevel: optimize, logSeverityLevel: 3,
    };
    last += 1;
    sessions.set(last, await ort.InferenceSession.create(readFileSync(file), options));
    return { id: last };
  },

  async run({ id, inputs, folder }) {
    const found = await sessions.get(id).run(feeds(inputs));
    const outputs = Object.entries(found).map(([name, { type, dims, data }], at) => {
      const file = `${folder}/output${at}`;
      writeFileSync(file, new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
      return { name, type, dims, file };
    });
    return { outputs };
  },

  // Runs of all sessions in turn, so that other work on the machine meets each of them; milliseconds, one list a session.
  async time({ ids, inputs, runs, least, seconds }) {
    const fed = feeds(inputs);
    const times = ids.map(() => []);
    const started = performance.now();
    for (let run = 0; run < runs && (run < least || performance.now() - started < seconds * 1000); run += 1) {
      for (const [at, id] of ids.entries()) {
        const begun = performance.now();
        await sessions.get(id).run(fed);
        times[at].push(performance.now() - begun);
      }
    }
    return { times };
  },

  async close({ id, profiled }) {
    const session = sessions.get(id);
    sessions.delete(id);
    if (profiled) session.endProfiling();
    await session.release();
    return {};
  },

  async versions() {
    return { onnxruntime_web: ort.env.versions.web, node: process.versions.node, v8: process.versions.v8 };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { what, ...given } = JSON.parse(line);
  let answer;
  try {
    answer = await requests[what](given);
  } catch (error) {
    answer = { error: String(error?.message ?? error) };
  }
  writeSync(Number(answers), `${JSON.stringify(answer)}\n`);
}
