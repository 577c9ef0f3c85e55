import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig } from 'vite'

export default defineConfig({
  plugins: [svelte()],
  // The server may put the page below a prefix: it rewrites the <base> of the document, and all paths are relative.
  base: './',
  build: {
    outDir: '../page',
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: 'es2022',
    reportCompressedSize: false,
    rolldownOptions: { checks: { pluginTimings: false } },
  },
})
