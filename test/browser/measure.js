// Says what a reader sees of the report, to the page that frames it.
const name = e => `${e.tagName.toLowerCase()}.${e.getAttribute("class") || ""} "${e.textContent.trim().slice(0, 40)}"`
const visible = e => e.checkVisibility() && e.getBoundingClientRect().width > 0
// Where a text is, which may reach beyond its element.
const written = e => {
	if (e instanceof SVGElement) return e.getBoundingClientRect()
	const range = document.createRange()
	range.selectNodeContents(e)
	return range.getBoundingClientRect()
}
document.querySelectorAll("details").forEach(d => { d.open = true })

const seen = {
	width: innerWidth, scrollWidth: document.documentElement.scrollWidth, height: 0,
	dark: matchMedia("(prefers-color-scheme: dark)").matches,
	loaded: performance.getEntriesByType("resource").map(r => r.name)
		.concat([...document.querySelectorAll("link, [src]")].map(e => e.outerHTML))
		.concat([...document.querySelectorAll("style")].flatMap(e => e.textContent.match(/url\(|@import/g) || [])),
	figures: [], small: [], beyond: [], overlaps: [], colours: {},
}

// Texts as large as they are shown: drawings are scaled.
for (const e of document.body.querySelectorAll("*")) {
	if (!visible(e) || e.tagName === "SCRIPT" || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue
	const turned = e instanceof SVGElement && e.getScreenCTM()
	const scale = turned ? Math.hypot(turned.a, turned.b) : 1
	const shown = parseFloat(getComputedStyle(e).fontSize) * scale
	if (shown < 10) seen.small.push(`${shown.toFixed(1)} ${name(e)}`)
}

for (const e of document.body.querySelectorAll("*")) {
	const r = e.getBoundingClientRect()
	if (visible(e) && !e.closest(".scroll") && (r.right > innerWidth + 1 || r.left < -1)) seen.beyond.push(name(e))
}

for (const f of document.querySelectorAll("figure")) {
	const plots = [...f.querySelectorAll(".plot")].filter(visible)
	const place = plots[0]?.getBoundingClientRect()
	const texts = plots.flatMap(p => [...p.querySelectorAll("text, .name, .value, .paper, .ticks span")]).filter(visible)
	seen.figures.push({ id: f.id, plots: plots.length, width: place?.width, height: place?.height, texts: texts.length })
	const tracks = plots.flatMap(p => [...p.querySelectorAll(".track")])
	const places = texts.map(written).concat(tracks.map(t => t.getBoundingClientRect()))
	texts.push(...tracks)
	places.forEach((a, i) => {
		if (a.left < place.left - 1 || a.right > place.right + 1 || a.top < place.top - 1 || a.bottom > place.bottom + 1) {
			seen.beyond.push(`${f.id}: ${name(texts[i])}`)
		}
		places.slice(i + 1).forEach((b, j) => {
			const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left)
			const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)
			if (wide > 1 && high > 1) seen.overlaps.push(`${f.id}: ${name(texts[i])} and ${name(texts[i + 1 + j])}`)
		})
	})
}

const style = getComputedStyle(document.documentElement)
for (const colour of ["--paper", "--ink", "--soft", ...Array.from({ length: 10 }, (_, i) => `--s${i}`)]) {
	seen.colours[colour] = style.getPropertyValue(colour).trim()
}
document.querySelectorAll("details").forEach(d => { d.open = false })
seen.height = document.documentElement.scrollHeight
parent.postMessage(JSON.stringify(seen), "*")
