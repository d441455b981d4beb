// What a saved page brings: base64 of gzip.

export function unpacked(packed) {
  const zipped = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const plain = new Blob([zipped]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(plain).arrayBuffer();
}
